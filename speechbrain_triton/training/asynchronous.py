"""Training without a GPU that waits for its host."""

import speechbrain as sb
import torch
from speechbrain.utils.logger import get_logger

logger = get_logger(__name__)


class AsynchronousBrain(sb.Brain):
    """A Brain whose GPU has the next step queued up while it works on one.

    SpeechBrain asks the GPU for the loss before the backward pass and at the
    end of each step, and for each gradient's finiteness if
    ``skip_nonfinite_grads`` is set. Each time the GPU runs dry. Here the loss
    is read a step later, and PyTorch's fused optimizers skip a step by
    themselves. Losses, averages and parameters stay the same. ``on_stage_end``
    has to call :meth:`hear_the_last` before it reads ``avg_train_loss``, which
    lacks a step until then.

    Arguments
    ---------
    *args, **kwargs
        Those of ``speechbrain.Brain``.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.skipped_steps = 0
        # 1 if the last step was skipped; and what was sent of each step.
        self._is_skipped = torch.zeros((), device=self.device)
        self._sent = OneStepLate()

    def fit_batch(self, batch):
        """Train on a batch, with its backward pass in this thread.

        In autograd's own thread the Python of a backward pass runs slower:
        on an H200's host the convolution module's took 0.3 to 0.6 ms more.

        Returns
        -------
        torch.Tensor
            The loss, on its device: nothing here waits for a GPU, as
            SpeechBrain's own method does three times.
        """
        should_step = self.step % self.grad_accumulation_factor == 0
        self.on_fit_batch_start(batch, should_step)
        with (
            self.no_sync(not should_step),
            torch.autograd.set_multithreading_enabled(False),
        ):
            with self.training_ctx:
                outputs = self.compute_forward(batch, sb.Stage.TRAIN)
                loss = self.compute_objectives(outputs, batch, sb.Stage.TRAIN)
            share = loss / self.grad_accumulation_factor
            self.scaler.scale(share).backward()
        if should_step:
            self.optimizers_step()
        self.on_fit_batch_end(batch, outputs, loss, should_step)
        return loss.detach()

    def update_average(self, loss, avg_loss):
        """Add a loss to the running average, in training one step late.

        SpeechBrain's checks of the loss come with it.
        """
        if not self.modules.training:
            return super().update_average(loss, avg_loss)
        sent = torch.stack([loss.float().reshape(()), self._is_skipped])
        self._is_skipped = torch.zeros_like(self._is_skipped)
        return self._heard(self._sent.exchange(self.step, sent), avg_loss)

    def _heard(self, before, avg_loss):
        if before is None:
            return avg_loss
        step, (loss, is_skipped) = before
        self.check_loss_isfinite(loss)
        if is_skipped:
            self.skipped_steps += 1
            logger.warning("Non-finite gradients: this step is skipped.")
        if torch.isfinite(loss):
            avg_loss += (float(loss) - avg_loss) / step
        return avg_loss

    def hear_the_last(self) -> None:
        """Wait for the loss of the last step, and add it to the average."""
        self.avg_train_loss = self._heard(
            self._sent.take(), self.avg_train_loss
        )

    def _save_intra_epoch_ckpt(self):
        # The average of all steps so far goes into it.
        self.hear_the_last()
        super()._save_intra_epoch_ckpt()

    def check_gradients(self):
        """Skip the whole step if one gradient is not finite.

        SpeechBrain asks the device about every parameter and drops single
        gradients. Clipping has spread the NaN to all of them by now, so one
        question is enough; and PyTorch's fused optimizers answer it on the
        device, as they do for GradScaler.
        """
        grads = [
            p.grad for p in self.modules.parameters() if p.grad is not None
        ]
        if not grads:
            return
        norm = torch.nn.utils.get_total_norm(grads)
        self._is_skipped = (~torch.isfinite(norm)).float()
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            self.optimizer.found_inf = self._is_skipped
        elif self._is_skipped:
            self.optimizer.zero_grad(set_to_none=True)

    def optimizers_step(self):
        """Step, unless :meth:`check_gradients` found it better not to."""
        super().optimizers_step()
        self.optimizer.found_inf = None


class OneStepLate:
    """Hands out the tensors of a step when the next one has been started.

    Whoever asks a GPU for a number waits until all that was started before is
    done, and then the GPU waits for new work. Here it has a whole step queued
    up meanwhile.

    Example
    -------
    >>> losses = OneStepLate()
    >>> losses.exchange(1, torch.tensor(3.0))
    >>> losses.exchange(2, torch.tensor(2.0))
    (1, tensor(3.))
    >>> losses.take()
    (2, tensor(2.))
    >>> losses.take()
    """

    def __init__(self) -> None:
        self._held = None

    def exchange(
        self, step: int, tensor: torch.Tensor
    ) -> tuple[int, torch.Tensor] | None:
        """Send a tensor on its way; take the one before.

        Arguments
        ---------
        step : int
            Number that it is handed out with.
        tensor : torch.Tensor
            Of any device, shape and dtype.

        Returns
        -------
        tuple, optional
            Step and tensor, on the CPU, of the call before; None if that was
            taken already, or this is the first one.
        """
        done = None
        if tensor.device.type == "cuda":
            stream = torch.cuda.current_stream(tensor.device)
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            tensor = copy.copy_(tensor, non_blocking=True)
            done = stream.record_event()
        before = self.take()
        self._held = step, tensor, done
        return before

    def take(self) -> tuple[int, torch.Tensor] | None:
        """Wait for the last tensor, and take it.

        Returns
        -------
        tuple, optional
            As :meth:`exchange` does.
        """
        if self._held is None:
            return None
        step, tensor, done = self._held
        self._held = None
        if done is not None:
            done.synchronize()
        return step, tensor
