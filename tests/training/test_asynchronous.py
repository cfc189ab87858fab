"""Steps that are read late train as SpeechBrain's do."""

import math

import pytest
import speechbrain as sb
import torch
from torch.optim import SGD, AdamW

from speechbrain_triton.training.asynchronous import AsynchronousBrain

BATCHES = torch.arange(1.0, 25.0).reshape(6, 4).sin()


class Linear(sb.Brain):
    """Learns to give 1; a batch may have its loss broken on purpose."""

    def __init__(self, opt_class=SGD, broken=None, device="cpu", **options):
        model = torch.nn.Linear(4, 1)
        with torch.no_grad():
            model.weight.fill_(0.5)
            model.bias.fill_(0.1)
        self.broken = broken or {}
        self.stage_losses = []
        super().__init__(
            modules={"model": model},
            opt_class=lambda params: opt_class(params, lr=0.1, **options),
            run_opts={
                "device": device,
                "skip_nonfinite_grads": True,
                "noprogressbar": True,
            },
        )

    def compute_forward(self, batch, stage):
        return self.modules.model(batch.to(self.device))

    def compute_objectives(self, outputs, batch, stage):
        loss = (outputs - 1).square().mean()
        if stage == sb.Stage.TRAIN:
            loss = loss + self.broken.get(self.step, 0.0)
        return loss

    def on_stage_end(self, stage, stage_loss, epoch=None):
        self.stage_losses.append(stage_loss)


class Late(AsynchronousBrain, Linear):
    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.TRAIN:
            self.hear_the_last()
            stage_loss = self.avg_train_loss
        super().on_stage_end(stage, stage_loss, epoch)


class NanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy * math.nan


class LateWithNan(Late):
    """Its third step has a loss that is finite, and gradients that are not."""

    def compute_objectives(self, outputs, batch, stage):
        if stage == sb.Stage.TRAIN and self.step == 3:
            outputs = NanGradient.apply(outputs)
        return super().compute_objectives(outputs, batch, stage)


def fit(brain, epochs=2, batches=BATCHES):
    brain.fit(range(epochs), list(batches), list(BATCHES[:2]))
    return brain


def parameters(brain):
    return torch.cat([p.detach().flatten() for p in brain.modules.parameters()])


@pytest.mark.parametrize("options", [{}, {"fused": True}], ids=str)
def test_trains_as_speechbrain_does(options):
    opt_class = AdamW if options else SGD
    stock = fit(Linear(opt_class, **options))
    late = fit(Late(opt_class, **options))
    assert torch.equal(parameters(late), parameters(stock))
    assert late.optimizer_step == stock.optimizer_step == 12
    assert late.skipped_steps == 0
    # Train and valid, twice.
    assert len(late.stage_losses) == 4
    assert late.stage_losses == pytest.approx(stock.stage_losses, rel=1e-12)


def test_average_lacks_the_last_step_until_it_is_heard():
    brain, told = Late(), []
    brain.on_fit_batch_end = lambda *_: told.append(brain.avg_train_loss)
    fit(brain, epochs=1)
    assert told[0] == told[1] == 0
    assert 0 not in told[2:]
    assert brain.stage_losses[0] != told[-1]


def test_a_mid_epoch_checkpoint_has_the_average_of_all_steps(tmp_path):
    saved = {}
    for kind in (Linear, Late):
        brain = kind()
        brain.checkpointer = sb.utils.checkpoints.Checkpointer(
            tmp_path / kind.__name__
        )
        brain.ckpt_interval_steps = 4
        save = brain.checkpointer.save_and_keep_only

        def seen(*args, brain=brain, save=save, **kwargs):
            saved[type(brain)] = brain.step, brain.avg_train_loss
            save(*args, **kwargs)

        brain.checkpointer.save_and_keep_only = seen
        fit(brain, epochs=1)
    assert saved[Late][0] == saved[Linear][0] == 4
    assert saved[Late][1] == pytest.approx(saved[Linear][1], rel=1e-12)


@pytest.mark.parametrize(
    ("opt_class", "options"),
    [(SGD, {}), (AdamW, {}), (AdamW, {"fused": True})],
    ids=["sgd", "adamw", "fused"],
)
def test_a_step_with_nan_gradients_is_skipped(opt_class, options, caplog):
    brain = fit(LateWithNan(opt_class, **options), epochs=1)
    assert brain.skipped_steps == 1
    assert brain.optimizer_step == 6
    without = torch.cat([BATCHES[:2], BATCHES[3:]])
    expected = fit(Linear(opt_class, **options), epochs=1, batches=without)
    assert torch.equal(parameters(brain), parameters(expected))
    if opt_class is AdamW:
        states = brain.optimizer.state.values()
        assert {int(state["step"]) for state in states} == {5}


def test_losses_that_are_not_finite_count_and_end_the_training():
    broken = {step: math.inf for step in range(2, 7)}
    brain = Late(broken=broken)
    brain.nonfinite_patience = 2
    with pytest.raises(ValueError, match="Loss is not finite and patience"):
        fit(brain, epochs=1)
    assert brain.nonfinite_count == 3


def test_a_single_such_loss_is_left_out_of_the_average():
    stock = fit(Linear(broken={2: math.inf}), epochs=1)
    late = fit(Late(broken={2: math.inf}), epochs=1)
    assert late.nonfinite_count == stock.nonfinite_count == 1
    assert late.stage_losses == pytest.approx(stock.stage_losses, rel=1e-12)


def test_backward_runs_in_the_thread_of_the_step():
    enabled, seen = torch._C._is_multithreading_enabled, []
    brain = Late()
    brain.modules.model.bias.register_hook(lambda _: seen.append(enabled()))
    fit(brain, epochs=1)
    assert seen == [False] * 6
    assert enabled()


def test_other_threads_are_back_after_a_step_that_failed():
    brain = Late()

    def fails(*_):
        raise RuntimeError("out of memory")

    brain.compute_objectives = fails
    with pytest.raises(RuntimeError, match="out of memory"):
        fit(brain)
    assert torch._C._is_multithreading_enabled()


@pytest.mark.gpu
def test_nothing_waits_for_the_gpu():
    brain = Late(AdamW, fused=True, device="cuda")
    brain.nonfinite_count = 0
    brain.init_optimizers()
    average = 0.0
    try:
        for brain.step, batch in enumerate(BATCHES.cuda(), start=1):
            # After the first step all is allocated.
            torch.cuda.set_sync_debug_mode("error" if brain.step > 1 else 0)
            average = brain.update_average(brain.fit_batch(batch), average)
    finally:
        torch.cuda.set_sync_debug_mode(0)
    brain.avg_train_loss = average
    brain.hear_the_last()
    stock = fit(Linear(AdamW, fused=True, device="cuda"), epochs=1)
    assert torch.equal(parameters(brain), parameters(stock))
    assert brain.avg_train_loss == pytest.approx(stock.stage_losses[0])
