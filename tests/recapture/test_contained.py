"""Of a contained run nothing is seen outside."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from cgtool.devices.simulated.device import SimulatedDevice
from cgtool.observe.annotations import Annotations
from cgtool.recapture import contained as module
from cgtool.recapture.contained import Clock, Stopped, UndoingRecorder, contained
from cgtool.torch_compat.patches import Patches


def _loop_over(errors: list[str]) -> None:
    """Goes on whatever is raised."""
    while len(errors) < 3:
        try:
            while True:
                pass
        except BaseException as error:
            errors.append(str(error))


REACHING: dict[str, Callable[[Path], Any]] = {
    "opens": lambda path: path.write_text("text"),
    "os.open": lambda path: os.open(path, os.O_CREAT | os.O_WRONLY),
    "torch.save": lambda path: torch.save(torch.zeros(2), path),
    "mkdir": lambda path: path.mkdir(),
    "rename": lambda path: path.parent.rename(path),
    "system": lambda path: os.system(f"touch {path}"),
    "subprocess": lambda path: subprocess.run(["touch", path], check=True),
    "fork": lambda path: os.fork(),
    "kill": lambda path: os.kill(os.getpid(), signal.SIGUSR1),
}


@pytest.mark.parametrize("name", REACHING)
def test_it_ends_before_it_reaches_out(name: str, tmp_path: Path) -> None:
    with pytest.raises(Stopped), contained(10):
        REACHING[name](tmp_path / "new")
    assert [*tmp_path.iterdir()] == []


def test_it_ends_before_it_connects() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.1)
        with pytest.raises(Stopped), contained(10):
            client.connect(server.getsockname())
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_run_that_catches_everything_writes_nothing_either(tmp_path: Path) -> None:
    def run() -> None:
        with contextlib.suppress(BaseException):
            (tmp_path / "first").write_text("text")
        (tmp_path / "second").write_text("text")

    with pytest.raises(Stopped), contained(10):
        run()
    assert [*tmp_path.iterdir()] == []


def test_a_run_without_an_end_is_stopped_again_and_again() -> None:
    errors: list[str] = []
    began = time.monotonic()
    with contained(0.05):
        _loop_over(errors)
    assert errors == ["time"] * 3
    assert time.monotonic() - began < 10


def test_nothing_is_printed_or_logged(capfd: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("of the program")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        with contained(10):
            print("inside")
            print("inside", file=sys.stderr)
            logger.warning("inside")
        print("outside")
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr() == ("outside\n", "outside\n")


def test_exceptions_pass_and_everything_is_as_before(tmp_path: Path) -> None:
    streams, start = (sys.stdout, sys.stderr), threading.Thread.start
    handler = signal.getsignal(signal.SIGALRM)
    for error in (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error), contained(10):
            raise error
        assert (sys.stdout, sys.stderr) == streams
        assert threading.Thread.start is start
        assert signal.getsignal(signal.SIGALRM) is handler
        (tmp_path / error.__name__).write_text("written")


def test_runs_inside_of_runs(tmp_path: Path) -> None:
    with contained(10):
        with pytest.raises(Stopped), contained(0.05):
            time.sleep(5)
        with contained(5):
            pass
        with pytest.raises(Stopped):
            (tmp_path / "file").write_text("text")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 10
    (tmp_path / "file").write_text("text")


def test_a_timer_of_the_program_goes_on() -> None:
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with contained(10):
            time.sleep(0.2)
        assert not rung
        time.sleep(0.1)
        assert rung
    finally:
        signal.signal(signal.SIGALRM, before)


def test_other_threads_write_and_print(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready, go = threading.Event(), threading.Event()

    def other() -> None:
        ready.set()
        go.wait(10)
        print("of another thread")
        (tmp_path / "other").write_text("text")
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(10)
    with contained(10):
        go.set()
        done.wait(10)
    thread.join()
    assert (tmp_path / "other").exists()
    assert capfd.readouterr().out == "of another thread\n"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_it_starts_belong_to_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pool = ThreadPoolExecutor(1)

    def write() -> None:
        print("inside")
        (tmp_path / "file").write_text("text")

    with contained(10):
        with pytest.raises(Stopped):
            pool.submit(write).result(10)
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert [*tmp_path.iterdir()] == []
    # The pool is the program's again.
    pool.submit(write).result(10)
    pool.shutdown()
    assert (tmp_path / "file").exists()
    assert capfd.readouterr().out == "inside\n"


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    simulated = SimulatedDevice("test")
    with simulated.active():
        yield simulated


def _recorder() -> UndoingRecorder:
    return UndoingRecorder({}, Annotations(), set())


def test_tensors_are_as_before(device: SimulatedDevice) -> None:
    on_device = torch.arange(6.0, device="cuda").reshape(2, 3)
    on_host = torch.arange(4)
    weight = torch.ones(3, device="cuda", requires_grad=True)
    weight.grad = torch.full_like(weight, 2.0)
    norm = torch.nn.BatchNorm1d(3).cuda()
    kept = [on_device.clone(), on_host.clone(), weight.grad.clone(), norm.running_mean.clone()]
    recorder = _recorder()
    with recorder:
        on_device[0].mul_(3)
        on_device.t()[1] = 7
        on_host.add_(1)
        torch.add(on_host, 1, out=on_host)
        (norm(on_device) @ weight).sum().backward()
        made = torch.zeros(2, device="cuda").add_(1)
    recorder.undo()
    now = [on_device, on_host, weight.grad, norm.running_mean]
    assert all(map(torch.equal, now, kept))
    assert made.tolist() == [1.0, 1.0]
    recorder.undo()
    assert on_host.tolist() == [2, 3, 4, 5]


def test_it_stops_before_it_copies_too_much(
    device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    x, large = torch.zeros(4, device="cuda"), torch.zeros(1000, device="cuda")
    recorder = _recorder()
    with pytest.raises(Stopped), recorder:
        x.add_(1)
        large.add_(1)
    recorder.undo()
    assert not x.any() and not large.any()


def test_drawn_numbers() -> None:
    recorder = _recorder()
    recorder.draws = 0.25
    with recorder:
        assert torch.rand(2).tolist() == [0.25, 0.25]


def test_two_runs_read_the_same_times() -> None:
    real = time.time
    times = []
    for _ in range(2):
        with Patches() as patches:
            clock = Clock(patches, days=1.0)
            times.append([time.monotonic() - before for before in [time.monotonic()] * 2])
            assert clock.reads == 3
            assert time.time() - real() > 86_000
            assert time.time_ns() > real() * 1e9
    assert times[0] == pytest.approx(times[1])
    assert time.time is real
