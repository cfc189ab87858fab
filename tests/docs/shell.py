"""Reads the commands of a shell script as far as the documentation needs."""

import re
import shlex

_ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.DOTALL)
_KEYWORDS = {"do", "done", "then", "fi", "wait"}


def commands(script: str) -> list[list[str]]:
    """Split a script into its simple commands.

    Variables that the script itself sets are replaced, heads of loops left out,
    and redirections dropped.
    """
    lexer = shlex.shlex(
        script.replace("\\\n", " "), posix=True, punctuation_chars="\n;&|()<>"
    )
    lexer.whitespace_split = True
    lexer.whitespace = " \t"
    lexer.commenters = "#"
    found, variables = [[]], {}
    skip = False
    for token in lexer:
        if skip:
            skip = False
        elif token in {">", ">>"}:
            skip = True
        elif set(token) <= set("\n;&|()"):
            found.append([])
        elif token in _KEYWORDS and not found[-1]:
            found.append([])
        else:
            found[-1].append(token)
    result = []
    for words in found:
        words = _expanded(words, variables)
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            words = words[1:]
            if not words:
                variables[match[1]] = match[2]
        if words and words[0] != "for":
            result.append(words)
    return result


def _expanded(words: list[str], variables: dict[str, str]) -> list[str]:
    result = []
    for word in words:
        if word.startswith("$") and word[1:] in variables:
            result += variables[word[1:]].split()
        else:
            result.append(word)
    return result
