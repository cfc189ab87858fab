import pytest

from speechbrain_triton.runs import RunError
from speechbrain_triton.runs.settings import (
    differing_settings,
    read_hyperparameters,
    shared_settings,
)


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "hyperparams.yaml"
        path.write_text(text, "utf-8")
        return read_hyperparameters(path)

    return read


def test_nothing_is_executed(read, tmp_path):
    trace = tmp_path / "executed"
    settings = read(
        f"a: !apply:pathlib.Path.touch [!new:pathlib.Path ['{trace}']]\n"
        f"b: !!python/object/apply:os.mkdir ['{trace}']\n"
        f"c: !!python/name:os.getcwd\n"
        "d: !PLACEHOLDER\n"
        "e: !ref <d> * 2\n"
        "f: !name:torch.nn.GELU\n"
        "g: 3\n"
    )
    assert not trace.exists()
    assert settings["d"] == "!PLACEHOLDER"
    assert settings["e"] == "!ref <d> * 2"
    assert settings["f"] == "!name:torch.nn.GELU"
    assert settings["g"] == 3


def test_plain_values(read):
    assert read(
        "a: 1\nb: 0.5\nc: True\nd: null\ne: (1, 2)\nf: [a, b]\ng: 2024-01-31\n"
        "h: .nan\ni: 'no'\nj: no\nk: {l: [{m: 1}, 2]}\n"
    ) == {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": None,
        "e": "(1, 2)",
        "f": "[a, b]",
        "g": "2024-01-31",
        "h": ".nan",
        "i": "no",
        "j": False,
        "k.l.0.m": 1,
        "k.l.1": 2,
    }


def test_aliases_are_followed_once(read):
    bomb = ["a0: &a0 {x: 1}"]
    bomb += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert read("\n".join(bomb)) == {"a0.x": 1}


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a: [1", "is not valid YAML at line"),
        ("a: *nowhere", "is not valid YAML at line 1"),
        ("a: \x07", "is not valid YAML"),
        ("- a\n- b", "is not a YAML mapping"),
        ("# only a comment", "is not a YAML mapping"),
        ("a: " + "[" * 100_000, "nested too deeply|not valid YAML"),
    ],
)
def test_bad_yaml(read, text, reason):
    with pytest.raises(RunError, match=rf"hyperparams\.yaml'.*{reason}"):
        read(text)


def of_seed(seed, **settings):
    folder = f"results/an4/{seed}"
    return {
        "seed": seed,
        "__set_seed": f"[{seed}]",
        "output_folder": folder,
        "save_folder": f"/scratch/{seed}/save",
        "train_log": f"{folder}/train_log.txt",
        "checkpointer.checkpoints_dir": f"/scratch/{seed}/save",
        "experiment_name": f"an4_s{seed}",
        "test_csv": f"[{folder}/test.csv]",
        "skip_prep": seed > 1,
        "dataloader.num_workers": seed,
    } | settings


def test_seeds_and_what_derives_from_them_do_not_differ():
    assert differing_settings([of_seed(1), of_seed(22), of_seed(3)]) == {}


@pytest.mark.parametrize(
    "name, values",
    [
        ("conv_backend", ("torch", "triton")),
        ("strides", ("(1, 1)", "(22, 22)")),
        ("beam_size", (1, 22)),
        ("streaming", (True, False)),
        ("test_csv", ("[results/an4/1/a.csv]", "[results/an4/22/b.csv]")),
        ("pretrained_folder", ("/models/a", "/models/b")),
        ("Transformer.dropout", (0.1, 0.2)),
        ("lr", (None, 0.1)),
    ],
)
def test_real_differences_show(name, values):
    first, second = of_seed(1), of_seed(22)
    first[name], second[name] = values
    assert differing_settings([first, second]) == {name: values}


def test_a_missing_setting_differs_from_null():
    assert differing_settings([of_seed(1), of_seed(2, lr=None)]) == {
        "lr": (None, None)
    }


def test_inner_settings_that_repeat_an_outer_one_are_left_out():
    runs = [
        {"conv": conv, "kernels.conv": conv, "kernels.ffn": ffn}
        for conv, ffn in (("torch", "a"), ("triton", "b"))
    ]
    assert differing_settings(runs) == {
        "conv": ("torch", "triton"),
        "kernels.ffn": ("a", "b"),
    }


def test_shared_settings_are_those_that_matter():
    common = {
        "precision": "fp16",
        "seed": 1,
        "n_mels": 80,
        "sampler.test_config.chunk_size": 16,
        "sampler.test_config.left_context_size": 4,
        "sampler.chunk_size_min": 8,
    }
    runs = [common | {"lr": 1}, common | {"lr": 2}]
    assert list(shared_settings(runs)) == [
        "precision",
        "seed",
        "sampler.test_config.chunk_size",
        "sampler.test_config.left_context_size",
    ]
