"""A disk that takes no more: an OSError that says which, and what was there before stays whole.

A limit of file sizes (EFBIG) strikes at every file of a save. A small file system of its own is
filled page by page and name by name (ENOSPC). What a disk may refuse at any call, EIO, is injected.
"""

import contextlib
import errno
import io
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import tracegraph as tg
from tests.generations import KINDS, files, save_model
from tracegraph.commands import main

resource = pytest.importorskip("resource")  # which Windows lacks
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def largest_file(size):
    """The system refuses to write more than `size` bytes to any file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def sizes(path):
    return {file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_file_of_a_save_may_be_too_large(kind, is_first):
    path, save, generation_of = KINDS[kind]
    save(2, "measured") if kind == "model" else save(2, "measured/kept")
    if not is_first:
        save(1, path)
    for size in sorted({0, *(size - 1 for size in sizes("measured"))}):
        before = files(".")
        with largest_file(size), pytest.raises(OSError, match="File too large") as caught:
            save(2, path)
        assert caught.value.errno == errno.EFBIG
        if is_first and kind == "model":
            assert not os.path.exists(path)
        elif not is_first:
            assert generation_of(path) in ((1, 2) if kind == "checkpoint" else (1,))
        if kind == "model":
            assert files(".") == before
    save(2, path)
    assert generation_of(path) == 2
    assert files(path) == files("measured" if kind == "model" else "measured/kept")


def test_the_message_of_a_full_disk():
    save_model(1, "model")
    with largest_file(1000), pytest.raises(OSError) as caught:
        save_model(2, "model")
    first, place, fix = str(caught.value).split("\n")
    assert first == f"[Errno {errno.EFBIG}] model cannot be saved to, and holds what it held: " + (
        os.strerror(errno.EFBIG)
    )
    assert "generations.py" in place
    assert fix == "  fix: raise the limit that the process has for files, `ulimit -f`"
    ours = [frame for frame in caught.traceback if f"{ROOT}/tracegraph" in str(frame.path)]
    assert not ours, ours


FILLED = """
import errno, os, pathlib, subprocess, sys
from tests.generations import KINDS
from tests.saving.test_saving_full_disk import other_writers

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=60", "none", "."], check=True)
os.chdir(os.getcwd())  # which is the new file system from now on
assert os.statvfs(".").f_blocks * os.statvfs(".").f_frsize == 2 * 2**20

def fill(pages):
    '''Takes all room but for so many pages.'''
    found = os.statvfs(".")
    with open("ballast", "wb", buffering=0) as file:
        file.write(bytes((found.f_bavail - pages) * found.f_frsize))
        try:
            while not pages:  # each processor counts by itself, so the number may be a little off
                file.write(bytes(found.f_frsize))
        except OSError:
            pass

def take_names(free):
    '''Takes all names but for so many.'''
    os.mkdir("names")
    for number in range(os.statvfs(".").f_ffree - free):
        open(f"names/{number}", "w").close()

def release(what):
    subprocess.run(["rm", "-rf", *what], check=True)

refused = set()
for kind, (path, save, generation_of) in KINDS.items():
    for taken, steps in ((fill, 120), (take_names, 12)):
        save(1, path)
        assert generation_of(path) == 1
        for free in range(0, steps, 1 if steps < 20 else 4):
            taken(free)
            try:
                save(2, path)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
                assert "fix: make room on the disk" in str(error), error
                refused.add((kind, taken.__name__))
            else:
                assert generation_of(path) == 2
                break
            finally:
                release(["ballast", "names"])
            assert generation_of(path) in (1, 2)
            if kind == "model":
                assert generation_of(path) == 1
        else:
            raise AssertionError("the room was never enough")
        release([path])

def is_refused(name, write):
    pathlib.Path(name).write_text("old")
    fill(0)
    try:
        write()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        return True
    else:
        # The kernel frees what was removed when it likes: room may come up behind our back.
        assert os.statvfs(".").f_bavail, name
        return False
    finally:
        release(["ballast"])

for name, write in other_writers().items():
    if any(is_refused(name, write) for _ in range(20)):
        refused.add(name)
    assert pathlib.Path(name).read_text() == "old"
    write()
    assert pathlib.Path(name).read_bytes() != b"old"
print(len(refused))
"""


def other_writers():
    """What else writes a file: by the name of the file."""
    f = tg.function(lambda x: tg.sin(x) * 2.0, input_signature=[tg.TensorSpec([3])])
    graph = f.get_concrete_function().graph
    tg.saved_model.save(f, "saved")
    given = ["saved", "--inputs", "x=[1,2,3]", "--outdir", "."]
    return {
        "graph.html": lambda: graph.to_html("graph.html"),
        "graph.json": lambda: graph.to_json("graph.json"),
        "f.stablehlo": lambda: tg.export.stablehlo(f, path="f.stablehlo"),
        "shown.txt": lambda: command("show", "saved", "--format", "text", "--output", "shown.txt"),
        "output_0.npy": lambda: command("run", *given),
        "exported": lambda: command("export", "saved", "--output", "exported"),
    }


class Told(OSError):
    """What a command says of a disk that takes no more."""


def command(*arguments):
    """Runs a command; raises what it says."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    if code:
        assert code == 2, errors.getvalue()
        reason = os.strerror(errno.ENOSPC)
        number = errno.ENOSPC if reason in errors.getvalue() else errno.EFBIG
        raise Told(number, errors.getvalue())


def test_exports_and_results_are_written_whole_or_not_at_all():
    for name, write in other_writers().items():
        write()
        whole = pathlib.Path(name).read_bytes()
        pathlib.Path(name).write_bytes(b"old")
        pathlib.Path(name).chmod(0o640)
        before = files(".")
        with largest_file(len(whole) - 1), pytest.raises(OSError) as caught:
            write()
        assert caught.value.errno == errno.EFBIG
        assert f"{name} cannot be written, and holds what it held: File too large" in str(
            caught.value
        )
        assert (pathlib.Path(name).read_bytes(), files(".")) == (b"old", before)
        write()
        assert pathlib.Path(name).read_bytes() == whole
        assert pathlib.Path(name).stat().st_mode & 0o777 == 0o640


def test_a_full_file_system(tmp_path):
    can = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"]
    if not shutil.which("unshare") or subprocess.run(can, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", FILLED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * len(KINDS) + len(other_writers())  # each was refused once


CALLS = ("mkdir", "open", "chmod", "fsync", "replace", "unlink", "rmdir")


class Faults:
    """Has the system refuse one call of those that a save makes of it, by its number."""

    def __init__(self, monkeypatch):
        self.left = 0
        monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug, and it is slow
        for name in CALLS:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, call):
        def called(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), *args[:1])
            return call(*args, **kwargs)

        return called


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_any_call_of_a_save_may_be_refused(kind, is_first, monkeypatch):
    path, save, generation_of = KINDS[kind]
    os.mkdir("measured")
    os.chdir("measured")
    save(2, path)
    whole = files(path)
    os.chdir("..")
    faults = Faults(monkeypatch)
    found = []
    for number in range(1, 1000):
        shutil.rmtree(path, ignore_errors=True)
        if not is_first:
            save(1, path)
        faults.left = number
        error = refusal(save, path)
        if faults.left > 0:
            break
        found.append(generation(path, generation_of, is_first))
        if error is None:  # of a call that asks for what is there already
            assert found[-1] == 2
        elif kind == "model":
            is_told_saved = f"{path} is saved, and the rest of the save failed" in error
            assert is_told_saved == (found[-1] == 2)
        save(2, path)
        assert generation_of(path) == 2 and files(path) == whole
    assert len(found) > 20 and {*found} == {0 if is_first else 1, 2}


def refusal(save, path):
    """What a save says that is refused."""
    try:
        save(2, path)
    except OSError as error:
        assert error.errno == errno.EIO
        return str(error)
    return None


def generation(path, generation_of, is_first):
    """The generation at a path; 0 where there is none, as before a first save."""
    try:
        return generation_of(path)
    except (AssertionError, tg.errors.NothingSavedError):
        assert is_first
        return 0
