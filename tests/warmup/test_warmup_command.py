"""Messages of ``warmup``, and what it asks of a recipe."""

from types import SimpleNamespace

import pytest
import speechbrain as sb
import torch
from warm_recipes import arguments

from speechbrain_triton import backend, cli
from speechbrain_triton.warmup import command, steps
from speechbrain_triton.warmup.compiling import Tally
from speechbrain_triton.warmup.steps import (
    LONG,
    build_brain,
    plan_steps,
    run_step,
)

TRAIN, VALID, TEST = sb.Stage.TRAIN, sb.Stage.VALID, sb.Stage.TEST


@pytest.fixture
def gpu(monkeypatch):
    """Stand in for one; what is compiled is said by the tests."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backend, "interpreted", lambda: False)


def error_of(capsys, *options):
    assert cli.main(["warmup", *options]) == 2
    return capsys.readouterr().err


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert error_of(capsys, "no.yaml") == (
        "speechbrain-triton warmup: error: warmup needs a GPU, and torch finds "
        "none here.\n"
    )


def test_in_the_interpreter(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "With TRITON_INTERPRET=1 there is nothing to compile." in error_of(
        capsys, "no.yaml"
    )


def test_on_a_cpu(gpu, capsys):
    options = dict.fromkeys(
        ("conv_backend", "frontend_backend", "loss_backend"), "torch"
    )
    assert error_of(capsys, *arguments("AN4", "conformer", **options)).endswith(
        "warmup has nothing to compile on device=cpu, because the tensors are "
        "on the CPU.\n"
    )


@pytest.mark.parametrize(
    "tally, sentence",
    [
        (Tally(5, 2, 3), "5 kernels: 2 compiled, 3 found in the cache, "),
        (Tally(), "No kernels: by its flags this recipe launches none."),
    ],
)
def test_it_says_how_many_there_were(gpu, monkeypatch, capsys, tally, sentence):
    monkeypatch.setattr(backend, "triton_obstacle", lambda *_: None)
    built = SimpleNamespace(device="cuda:1")
    monkeypatch.setattr(steps, "build_brain", lambda arguments: built)
    monkeypatch.setattr(command, "_compile_all", lambda brain, device: tally)
    assert cli.main(["warmup", "recipe.yaml", "--streaming=True"]) == 0
    assert capsys.readouterr().out.startswith(sentence)


def test_mistakes_are_named(gpu, capsys, tmp_path):
    assert "absent.yaml" in error_of(capsys, "absent.yaml")
    other = tmp_path / "other.yaml"
    other.write_text("modules: {}\n")
    assert "other.yaml has no key 'streaming', which" in error_of(
        capsys, str(other)
    )
    wrong = arguments("AN4", "conformer", conv_backend="Triton")
    assert "conv='Triton' is not one of" in error_of(capsys, *wrong)
    wrong = arguments("AN4", "conformer", no_such_key=1)
    assert "no_such_key" in error_of(capsys, *wrong)


def test_nothing_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    brain = build_brain(arguments("LibriSpeech", "conformer"))
    for step in plan_steps(brain):
        if step.seconds < LONG:
            run_step(brain, step)
            break
    assert not list(tmp_path.iterdir())


def test_steps_are_of_all_stages_and_contexts():
    brain = build_brain(arguments("LibriSpeech", "conformer"))
    plan = plan_steps(brain)
    assert {step.stage for step in plan} == {TRAIN, VALID, TEST}
    for stage, long in (
        (TRAIN, [10, 5, 2, 1]),
        (VALID, [8, 4, 2, 1]),
        (TEST, [8, 4, 2, 1]),
    ):
        own = [step for step in plan if step.stage == stage]
        assert [step.B for step in own if step.seconds == LONG] == long
        assert max(step.labels for step in own) >= 250
    contexts = {
        stage: [step.chunks for step in plan if step.stage == stage]
        for stage in sb.Stage
    }
    sizes = {c and c.chunk_size for c in contexts[TRAIN]}
    assert None in sizes and len(sizes) > 3
    test = brain.hparams.dynchunktrain_config_sampler.test_config
    assert None in contexts[TEST] and test in contexts[TEST]


def test_without_streaming_there_is_one_context():
    options = arguments("AN4", "conformer", streaming=False, batch_size=7)
    plan = plan_steps(build_brain(options))
    assert {step.chunks for step in plan} == {None}
    assert max(step.B for step in plan) >= 7
