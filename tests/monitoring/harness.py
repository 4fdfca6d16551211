"""A real server with small tiers, kept busy by real clients, for the tests in this folder."""
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

SKIPPED = 77  # what ctest takes for "skipped"
PATIENCE_S = 120  # when a test gives up; waiting ends with what is waited for

# More tokens than the windows below keep out of the cold tier: 840 of a model that reads bytes, 200
# of one that reads words.
PROMPT = " ".join(f"Chapter {i}: the old house by the river had {i} rooms and a garden."
                  for i in range(12))


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(SKIPPED)


def wait_for(what, condition):
    """The first true value of `condition`; fails the test, naming `what`, when there is none."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up waiting for {what}")
        time.sleep(0.1)


def get(url):
    """The body of an HTTP answer with status 200, or None."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except (urllib.error.URLError, OSError):
        return None


class Disk:
    """Makes the disk of a server slow or full, through faulty_disk.cc."""

    def __init__(self, folder, shim):
        self.path = Path(folder) / "disk-control"
        self.environment = {"LD_PRELOAD": str(shim), "FAULTY_DISK_CONTROL": str(self.path)}
        self.path.write_bytes(struct.pack("ii", 0, 0))

    def set(self, read_delay_ms=0, write_errno=0):
        with open(self.path, "r+b") as file:
            file.write(struct.pack("ii", read_delay_ms, write_errno))


class Server:
    """strata-server on the model, with windows so short that a page of text reaches every tier."""

    def __init__(self, binary, model, folder, environment=None, options=()):
        self.folder = Path(folder)
        self.cold_path = self.folder / "kv.cold"
        self.log = open(self.folder / "server.log", "wb")
        address_file = self.folder / "address"
        command = [binary, "--model", model, "--listen", "127.0.0.1:0", "--metrics-listen",
                   "127.0.0.1:0", "--address-file", str(address_file), "--threads", "1",
                   "--piece-tokens", "64", "--sink-tokens", "64", "--hot-window", "64",
                   "--warm-window", "64", "--hot-bytes", "10MiB", "--warm-bytes", "8MiB",
                   "--cold-bytes", "32MiB", "--staging-bytes", "5MiB", "--max-sequences", "8",
                   "--max-context", "1300", "--io-engine", "threads",
                   "--cold-path", str(self.cold_path), *options]
        self.process = subprocess.Popen(command, env={**os.environ, **(environment or {})},
                                        stdout=self.log, stderr=self.log)

        def addresses():
            if self.process.poll() is not None:
                raise AssertionError("the server ended:\n" + self.log_text())
            lines = address_file.read_text().split() if address_file.exists() else []
            return lines if len(lines) == 2 and get(f"http://{lines[1]}/readyz") else None

        self.address, self.http = wait_for("the server", addresses)

    def log_text(self):
        return (self.folder / "server.log").read_text(errors="replace")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Load:
    """Clients that ask for one text after the other until stopped."""

    def __init__(self, client, server, clients, tokens=400):
        self.command = [client, "generate", "--server", server.address, "--ignore-eos", "-q", "-n",
                        str(tokens), PROMPT]
        self.stopped = threading.Event()
        self.running = set()
        self.failures = []
        self.done = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._loop) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _loop(self):
        while not self.stopped.is_set():
            process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE)
            with self.lock:
                self.running.add(process)
            error = process.communicate()[1]
            with self.lock:
                self.running.discard(process)
                if self.stopped.is_set():
                    return
                self.done += 1
                if process.returncode != 0:
                    self.failures.append(error.decode(errors="replace"))
                    self.stopped.wait(0.2)

    def stop(self):
        self.stopped.set()
        with self.lock:
            for process in self.running:
                process.terminate()
        for thread in self.threads:
            thread.join()


def folder():
    return tempfile.TemporaryDirectory(prefix="strata-monitoring.")
