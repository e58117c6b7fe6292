"""One run from beginning to end, or from where it was interrupted."""

import gc
import math
import os
import shutil
import statistics
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from accelerate import PartialState
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)

from lln import memory
from lln.files import reserved
from lln.train.callbacks import (
    RecordAttention,
    RecordMetrics,
    ShowProgress,
    StopEarly,
    measurable,
)
from lln.train.checkpoints import STAGING, last_good, step_of
from lln.train.config import Run, Training
from lln.train.order import Examples, Order
from lln.train.record import Record
from lln.train.trainer import RunTrainer

SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


@dataclass(frozen=True)
class Material:
    """What a kind of training brings to a session.

    Attributes:
        examples: to train on.
        evaluation: to evaluate on.
        collate: makes a batch of examples.
        build: the model, with random weights from torch's generator.
        reduce: of logits and labels, what `score` needs of each example.
        score: metrics, of the reductions of all examples.
        best: the metric to select by.
        tokenizer: that made the tokens, to be saved with the model; None where there is none.
        test: to evaluate the best model on, once, in the end; None where nothing is held back.
    """

    examples: Examples
    evaluation: Examples
    collate: Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]
    build: Callable[[], PreTrainedModel]
    reduce: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    score: Callable[[Any], dict[str, float]]
    best: str
    tokenizer: PreTrainedTokenizerFast | None = None
    test: Examples | None = None


def train(
    run: Run,
    prepare: Callable[[Run], Material],
    *,
    command: str,
    restart: bool,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """Trains, unless that has been done, and returns what `run.json` holds.

    Args:
        run: what to train.
        prepare: finds data and model.
        command: that the user gave, for the record.
        restart: throw away what earlier calls left.
        say: told where the run begins.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    state = PartialState(cpu=_on_cpu())
    if _on_cpu():
        memory.keep()
    with ExitStack() as stack:
        if state.is_main_process:
            try:
                stack.enter_context(reserved(run.folder))
            except BlockingIOError:
                raise ValueError(
                    f"{run.folder} is being trained by another process: wait for it, or choose "
                    "another name="
                ) from None
        return _train(run, prepare, state, command, restart, say)


def _train(
    run: Run,
    prepare: Callable[[Run], Material],
    state: PartialState,
    command: str,
    restart: bool,
    say: Callable[[str], object],
) -> dict[str, Any]:
    record = Record(run, writes=state.is_main_process)
    if restart:
        state.wait_for_everyone()  # until all have read what the first process now removes
        record.forget()
        state.wait_for_everyone()
    record.check()
    tell = say if state.is_main_process else _say_nothing
    if record.finished:
        tell(f"{run.folder} is finished, nothing to do (--restart does it again)")
        return record.content
    with state.main_process_first():  # it fills the caches that the others read
        material = prepare(run)
    with warnings.catch_warnings():
        if not state.is_main_process:
            warnings.simplefilter("ignore")  # one process says it
        checkpoint = last_good(run.folder)
    set_seed(run.seed)
    model = material.build()
    trainer = _trainer(run, material, model, record)
    stop = StopEarly(record, best=material.best, patience=run.experiment.training.patience)
    trainer.add_callback(stop)
    progress = ShowProgress(f"{run.mixer.label}, seed {run.seed}")
    if state.is_main_process:
        trainer.add_callback(progress)
    done = 0 if checkpoint is None else step_of(checkpoint) or 0
    device = trainer.args.device
    tell(f"{run.folder}: {f'goes on after step {done}' if done else 'begins'}")
    record.start(done, command=command, parameters=model.num_parameters(), device=str(device))
    gc.collect()  # models of earlier runs
    memory.forget_peak(device)
    try:
        if not stop.reached():  # before it could be closed
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        final = _final(record, material.best, device)
        if material.test is not None:
            final |= trainer.test_best(material.test)
    except BaseException:
        with suppress(OSError):  # a full disk takes no last words either
            record.finish("failed")
        raise
    finally:
        progress.close()
    if state.is_main_process:
        shutil.rmtree(run.folder / STAGING, ignore_errors=True)
    record.finish("finished", **final)
    state.wait_for_everyone()
    return record.content


def steps_of(training: Training, examples: int) -> int:
    """Updates of a training."""
    if training.steps is not None:
        return training.steps
    assert training.epochs is not None
    return math.ceil(training.epochs * examples / training.batch_size)


def _trainer(run: Run, material: Material, model: PreTrainedModel, record: Record) -> RunTrainer:
    training = run.experiment.training
    steps = steps_of(training, len(material.examples))
    callbacks: list[Any] = [RecordMetrics(record)]
    if training.measure_every and measurable(model):
        callbacks.append(RecordAttention(record, every=training.measure_every))
    trainer = RunTrainer(
        record=record,
        keep=training.keep,
        best=material.best,
        model=model,
        args=_arguments(run, steps),
        data_collator=material.collate,
        train_dataset=Order(material.examples, length=steps * training.batch_size, seed=run.seed),
        eval_dataset=material.evaluation,
        processing_class=material.tokenizer,
        compute_metrics=material.score,
        preprocess_logits_for_metrics=material.reduce,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    _check_sharding(trainer)
    return trainer


def _arguments(run: Run, steps: int) -> TrainingArguments:
    training = run.experiment.training
    processes = PartialState().num_processes
    share, rest = divmod(training.batch_size, processes * training.accumulation)
    if rest or not share:
        raise ValueError(
            f"batch_size={training.batch_size} must be a multiple of the {processes} processes "
            f"times accumulation={training.accumulation}"
        )
    if training.precision == "fp16" and not torch.cuda.is_available():
        raise ValueError("precision=fp16 needs a GPU: use bf16 or fp32 here")
    arguments = TrainingArguments(
        output_dir=str(run.folder),
        max_steps=steps,
        per_device_train_batch_size=share,
        per_device_eval_batch_size=share,
        gradient_accumulation_steps=training.accumulation,
        learning_rate=training.learning_rate,
        lr_scheduler_type=SCHEDULES[training.schedule],
        warmup_steps=round(training.warmup * steps),
        weight_decay=training.weight_decay,
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        adam_epsilon=training.adam_epsilon,
        max_grad_norm=training.clip,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        gradient_checkpointing=training.gradient_checkpointing,
        torch_compile=training.compile,
        use_cpu=_on_cpu(),
        seed=run.seed,
        train_sampling_strategy="sequential",  # `Order` has shuffled
        remove_unused_columns=False,
        dataloader_num_workers=training.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        logging_steps=training.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=training.eval_every,
        save_steps=training.save_every,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )
    # Several GPUs in one process would multiply the batch; torchrun gives each its own.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def _check_sharding(trainer: RunTrainer) -> None:
    """Refuses FSDP where it would not shard, or not save a model."""
    if _on_cpu() and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        raise ValueError("FSDP needs GPUs: accelerate shards nothing on CPUs, use torchrun here")
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        raise ValueError(
            "FSDP would save a model in parts: launch with --fsdp_state_dict_type FULL_STATE_DICT"
        )


def _final(record: Record, best: str, device: torch.device) -> dict[str, Any]:
    """The best evaluation, and what the training cost."""
    evaluation = dict(record.best(best))
    del evaluation["kind"], evaluation["seconds"]
    return {
        "best_step": evaluation.pop("step"),
        "eval_loss": evaluation.pop("loss"),
        **evaluation,
        "steps": record.train[-1]["step"],
        "seconds_per_step": statistics.median(line["seconds_per_step"] for line in record.train),
        "peak_memory_bytes": memory.peak(device),
        "train_seconds": round(record.seconds, 1),
    }


def _on_cpu() -> bool:
    """Has to be said: without a GPU, accelerate would run each of several processes alone."""
    return not torch.accelerator.is_available()


def _say_nothing(text: str) -> None:
    """For all processes but the first."""
