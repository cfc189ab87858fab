"""WER files as SpeechBrain writes them, from texts counted by hand."""

from speechbrain.utils.metric_stats import ErrorRateStats

# id: (reference, hypothesis); counted by hand: 13 words, one deletion, one
# insertion and one substitution; 54 characters, 4 insertions ("big "), and
# 4 + 1 deletions ("the ", the l of world).
HAND_COUNTED = {
    "utt1": ("the cat sat on the mat", "the cat sat on mat"),
    "utt2": ("a dog barks", "a big dog barks"),
    "utt3": ("hello world", "hello word"),
    "utt4": ("good night", "good night"),
}


def write_wer(path, utterances):
    """Writes a WER file with SpeechBrain's own code."""
    stats = ErrorRateStats()
    for key, (reference, hypothesis) in utterances.items():
        stats.append([key], [hypothesis.split(" ")], [reference.split(" ")])
    with open(path, "w", encoding="utf-8") as file:
        stats.write_stats(file)
