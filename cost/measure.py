"""Measure one training, evaluation or comparison in a process whose memory is its own.

    python -m cost.measure train RESULT.json STARTED BUDGET COMMAND ...
    python -m cost.measure evaluate RESULT.json STARTED BUDGET COMMAND ...
    python -m cost.measure original RESULT.json STARTED BUDGET NAME=PATH COMMAND ...

benchmark.py calls it. STARTED: time.time() before this process. BUDGET: seconds that the steps may
take. COMMAND: options of train.py or evaluate.py. RESULT.json holds what is known so far, also if
the process is stopped.
"""

if __name__ == "__main__":
    import utils

    utils.start()

import os
import resource
import signal
import sys
import threading
import time
import warnings

import torch

import evaluate
import train
import utils
from cost.originals import compare_steps
from utils import save_json

GPU_STEPS = 100
GPU_WARM_UP_STEPS = 20
MIN_CPU_STEPS = 3  # after one
BYTES_PER_GIB = 2**30
SECONDS_PER_LOOK = 0.05  # at the memory


class Memory(threading.Thread):
    """Watches the memory of this process, with and without the pages of mapped files."""

    def __init__(self):
        super().__init__(daemon=True)
        self.anonymous = 0  # largest number of bytes that no file backs
        self.start()

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(SECONDS_PER_LOOK)

    def look(self) -> None:
        """Note the memory that no file backs."""
        try:
            with open("/proc/self/status", encoding="ascii") as file:
                lines = dict(line.split(":", 1) for line in file)
        except OSError:  # no Linux
            return
        kilobytes = int(lines.get("RssAnon", "0").split()[0])
        self.anonymous = max(self.anonymous, 1024 * kilobytes)

    def report(self) -> dict[str, float]:
        """Return the peaks so far in GiB."""
        self.look()
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peaks = {
            "memory_gib": kilobytes * 1024 / BYTES_PER_GIB,
            "memory_without_files_gib": self.anonymous / BYTES_PER_GIB,
        }
        if torch.cuda.is_available():
            peaks["gpu_gib"] = torch.cuda.max_memory_reserved() / BYTES_PER_GIB
        return {name: round(value, 3) for name, value in peaks.items()}


def count_cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Result:
    """What has been measured, in a file that always holds all of it."""

    def __init__(self, path: str):
        self.path = path
        self.memory = Memory()
        self.values: dict = {"torch": torch.__version__}
        if torch.cuda.is_available():
            self.values["gpu"] = torch.cuda.get_device_name()

    def add(self, **values) -> None:
        """Note values and the memory so far, and write the file."""
        self.values |= values | self.memory.report()
        save_json(self.values, self.path)


# ---- a training


class TimedTraining(train.Training):
    """A training that stops itself after some steps, and knows how long they took."""

    result: Result
    started: float  # time.time() before the process
    budget: float  # seconds that the steps may take
    last: "TimedTraining"  # that was built

    def __init__(self, *args):
        super().__init__(*args)
        TimedTraining.last = self
        self.on_gpu = self.device.type == "cuda"
        self.warm_up = GPU_WARM_UP_STEPS if self.on_gpu else 1
        self.steps_done = 0
        self.pairs_done = 0
        self.start = 0.0  # of the steps that count
        self.seconds = 0.0  # that they took
        self.batch = None

    def learn(self, batch) -> None:
        """Take a step, and note the first one and the time of those after the warm-up."""
        if not self.steps_done:
            self.result.add(
                first_step_s=time.time() - self.started,
                first_step_cpu_s=count_cpu_seconds(),
                pairs=len(self.pairs),
                batch_size=self.batch_size,
                words=len(self.vocab),
            )
        super().learn(batch)
        self.steps_done += 1
        if self.steps_done <= self.warm_up:
            self.wait()
            self.start = time.perf_counter()
            return
        self.pairs_done += len(batch.lengths)
        if self.is_enough():
            self.wait()
            self.seconds = time.perf_counter() - self.start
            self.batch = batch
            os.kill(os.getpid(), signal.SIGTERM)  # the training ends with this step

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def is_enough(self) -> bool:
        """True at the end of the epoch, when the time is over, and on a GPU after GPU_STEPS."""
        count = self.steps_done - self.warm_up
        if self.steps_done == self.steps:  # of the epoch
            return True
        if self.on_gpu and count == GPU_STEPS:
            return True
        late = time.perf_counter() - self.start > self.budget
        return late and count >= MIN_CPU_STEPS

    def time_steps_alone(self, count: int) -> float:
        """Return the pairs a second of steps on the last batch, which is on the device already."""
        self.model.train()
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            train.Training.learn(self, self.batch)
        self.wait()
        seconds = time.perf_counter() - start
        self.unread.clear()
        return count * len(self.batch.lengths) / seconds

    def count_waits(self) -> int:
        """Count how often a step waits for the GPU."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            train.Training.learn(self, self.batch)
            torch.cuda.set_sync_debug_mode("default")
        self.unread.clear()
        # not torch's warning that this mode is a prototype
        waits = [warning for warning in caught if "called a synchronizing" in str(warning.message)]
        return len(waits)


def measure_training(result: Result, started: float, budget: float, words: list[str]) -> None:
    """Start a training as train.py does, stop it after some steps, and validate its model."""
    TimedTraining.result = result
    TimedTraining.started = started
    TimedTraining.budget = budget
    opt = train.parse_args(words)
    status = train.train(opt, TimedTraining)
    run = TimedTraining.last
    if status != 128 + signal.SIGTERM or run.batch is None:
        raise utils.InputError("the training had too few steps to be measured")

    count = run.steps_done - run.warm_up
    pace = run.pairs_done / run.seconds
    result.add(steps=count, pairs_per_s=pace, step_ms=1000 * run.seconds / count)
    if run.on_gpu:
        result.add(pairs_per_s_alone=run.time_steps_alone(count), waits_a_step=run.count_waits())

    run.model.eval()
    start = time.perf_counter()
    run.rank_dev()
    images = len(run.splits["dev"].images)
    result.add(validation_s=time.perf_counter() - start, validation_images=images)
    run.save("model_best.pt")
    result.add(done=True)


# ---- an evaluation


def measure_evaluation(result: Result, started: float, words: list[str]) -> None:
    """Run evaluate.py, and count from the start of the process."""
    evaluate.evaluate_retrieval(evaluate.parse_args(words))
    result.add(evaluate_s=time.time() - started, evaluate_cpu_s=count_cpu_seconds(), done=True)


# ---- a step of an original


def measure_original(result: Result, budget: float, words: list[str]) -> None:
    """Time steps of ours and of an original in turn."""
    name, path = words[0].split("=", 1)
    result.add(**compare_steps(name, path, words[1:], budget), done=True)


def main(argv: list[str] | None = None) -> None:
    if argv is None:
        argv = sys.argv[1:]
    what, path, started, budget, *words = argv
    result = Result(path)
    if what == "train":
        utils.run("cost.measure", measure_training, result, float(started), float(budget), words)
    elif what == "evaluate":
        utils.run("cost.measure", measure_evaluation, result, float(started), words)
    else:
        utils.run("cost.measure", measure_original, result, float(budget), words)


if __name__ == "__main__":
    main()
