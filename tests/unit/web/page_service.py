"""``hadar web`` as its users start it, before a pretended controller; a proxy, and a browser."""

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import httpx2 as httpx
from missing import missing

HADAR = Path(sysconfig.get_path("scripts")) / "hadar"
HOSTILE = ("<script>alert(1)</script>", 'x" onmouseover="alert(1)', "{{ 7*7 }}", "a\u202eb\x00c")
ME = pwd.getpwuid(os.getuid()).pw_name
OTHERS = tuple(
    (one.pw_name, one.pw_uid) for one in pwd.getpwall() if one.pw_uid not in (0, os.getuid())
)[:3]
"""Three users of this machine."""


def with_accounting(folder, *jobs):
    """A sacct that has these jobs of two GPU-hours, (number, user): the lines for the site's TOML.
    It notes its arguments in ``asked``, and shows others' jobs whatever it is asked."""
    programs = folder / "bin"
    programs.mkdir()
    now = time.time()
    submit, end = (datetime.fromtimestamp(now - ago).isoformat()[:19] for ago in (7200, 3600))
    times = f"{submit}|{submit}|{submit}|{end}|COMPLETED|600"
    lines = [f"{job}|{times}|gres/gpu=2|gres/gpu=2|gpu|{user}|acct-{user}" for job, user in jobs]
    (folder / "rows").write_text("\n".join(lines) + "\n")
    sacct = programs / "sacct"
    sacct.write_text(f'#!/bin/sh\necho "$*" >>{folder}/asked\nexec cat {folder}/rows\n')
    sacct.chmod(0o755)
    return f'[slurm]\nbin_dir = "{programs}"\n'


@contextmanager
def serving(world, *options):
    """The address that it prints: a URL, or the path of a socket."""
    argv = [HADAR, "web", "--config", world.config_path, *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        assert said.startswith("hadar web: "), said
        yield said.split()[-1]
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


class Relay:
    """A site's proxy: a loopback port in front of the unix socket, which names the user."""

    def __init__(self, path, user):
        self._path, self._user = path, user
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                browser, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(browser,), daemon=True).start()

    def _carry(self, browser):
        with browser, socket.socket(socket.AF_UNIX) as page:
            page.connect(str(self._path))
            asked = b""
            while b"\r\n\r\n" not in asked:
                part = browser.recv(65536)
                if not part:
                    return
                asked += part
            first, _, rest = asked.partition(b"\r\n")
            extra = f"\r\nX-Remote-User: {self._user}\r\nConnection: close\r\n"
            page.sendall(first + extra.encode() + rest.replace(b"Connection: keep-alive\r\n", b""))
            try:
                while part := page.recv(65536):
                    browser.sendall(part)
            except OSError:
                return


def client(address, **more):
    """Asks the page at a URL or on a socket."""
    if address.startswith("http"):
        return httpx.Client(base_url=address, timeout=30, **more)
    transport = httpx.HTTPTransport(uds=address)
    return httpx.Client(transport=transport, base_url="http://page", timeout=30, **more)


def rows(page, path="api/v1/status", **more):
    return page.get(path, **more).json()["result"]["rows"]


def events(stream):
    """The data of each event, and "" for a comment."""
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield line[6:]


def version(page, path="/"):
    return re.search(r'data-version="(\w+)"', page.get(path).text)[1]


@contextmanager
def browser():
    """A headless Chromium, of Debian's package."""
    program = shutil.which("chromium")
    if program is None:
        missing("chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        found = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


def axe():
    """The text of axe-core, which ``npm install --prefix <environment> axe-core`` puts there."""
    path = Path(sys.prefix) / "node_modules" / "axe-core" / "axe.min.js"
    return path.read_text() if path.exists() else None
