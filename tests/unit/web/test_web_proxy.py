"""Behind a real nginx that signs users in, below a prefix: who is believed, links, and events."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import pytest
from missing import missing
from page_service import ME, OTHERS, client, events, rows, serving, version

from benchmarks.page.world import PretendController

ROOT = os.getuid() == 0
PROXY = "www-data" if ROOT else ME
PASSWORD = "secret"  # noqa: S105
FIRST, SECOND, _ = (name for name, _ in OTHERS)
GUIDE = Path(__file__).parents[3] / "docs" / "web.md"


def recipe():
    """The server's part of the guide, as a site copies it."""
    text = GUIDE.read_text()
    return text.split("```nginx\n")[1].split("```")[0]


@contextmanager
def nginx(folder, socket_path):
    """The address below which the page is, as the guide has it put there."""
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(program).exists():
        missing("nginx is not installed: apt-get install nginx-light")
    found = recipe()
    for old, new in (
        ("/run/slurm-hadar-web/web.sock", str(socket_path)),
        ("/etc/nginx/hadar.users", f"{folder}/users"),
    ):
        assert old in found
        found = found.replace(old, new)
    hashed = subprocess.run(
        ["openssl", "passwd", "-apr1", PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    (folder / "users").write_text("".join(f"{one}:{hashed}\n" for one in (FIRST, SECOND, "ghost")))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{f'user {PROXY};' if ROOT else ''}\ndaemon off;\nworker_processes 1;\n"
        f"pid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\n"
        f"access_log off;\n{temporary}server {{\nlisten unix:{folder}/front.sock;\n{found}}}\n}}\n"
    )
    process = subprocess.Popen(
        [program, "-p", folder, "-c", folder / "nginx.conf"], stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 30
        while not (folder / "front.sock").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield folder / "front.sock"
    finally:
        process.terminate()
        process.wait(20)
        process.stderr.close()


@pytest.fixture(scope="module")
def front():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The proxy's user must come to the socket.
        folder.chmod(0o755)
        world = PretendController(folder, 12, 6, ("jobs",), f'[web]\nproxy_user = "{PROXY}"\n')
        world.users = OTHERS
        page = folder / "page.sock"
        with world, serving(world, "--socket", page), nginx(folder, page) as address:
            yield world, str(address)


def as_user(address, name, **more):
    return client(address, auth=(name, PASSWORD), **more)


def test_the_user_is_who_signed_in_whatever_the_browser_claims(front):
    _, address = front
    with client(address) as page:
        assert page.get("/hadar/").status_code == 401
    for name, foreign in ((FIRST, SECOND), (SECOND, FIRST)):
        with as_user(address, name, headers={"X-Remote-User": foreign}) as page:
            assert f'<p class="me">{name}</p>' in page.get("/hadar/").text
            assert {row["user"] for row in rows(page, "/hadar/api/v1/status")} == {name}
    with as_user(address, "ghost") as page:
        answer = page.get("/hadar/")
        assert answer.status_code == 403 and "does not know" in answer.text


def test_each_link_of_each_page_works_below_the_prefix(front):
    _, address = front
    with as_user(address, FIRST) as page:
        assert page.get("/hadar").headers["location"].endswith("/hadar/")
        seen: set[str]
        seen, left = set(), ["/hadar/"]
        while left:
            path = left.pop()
            if path in seen or len(seen) > 40:
                continue
            seen.add(path)
            answer = page.get(path)
            assert answer.status_code == 200, path
            assert path.startswith("/hadar/")
            if "text/html" in answer.headers["content-type"]:
                found = re.findall(r'(?:href|src|action)="([^"#]+)"', answer.text)
                left += [urljoin(path, one.replace("&amp;", "&")) for one in found]
        assert {"/hadar/nodes", "/hadar/timeline", "/hadar/static/live.js"} <= seen
        assert any(one.startswith("/hadar/jobs/") for one in seen)


def test_an_event_comes_through_at_once(front):
    world, address = front
    with as_user(address, FIRST) as page:
        # Short events, which fill no buffer.
        known = version(page, "/hadar/?text=none-such")
        query = {"view": "queue", "text": "none-such", "version": known}
        with page.stream("GET", "/hadar/events", params=query) as stream:
            heard = events(stream)
            for _ in range(2):
                world.tick()
                # One that is held back for a full buffer would end in the client's time limit.
                assert "Controller acts" in next(heard)


def test_a_caller_beside_the_proxy_is_no_other_user(front):
    _, address = front
    page_socket = Path(address).parent / "page.sock"
    with client(str(page_socket)) as page:
        answer = page.get("/", headers={"X-Remote-User": FIRST})
        if ROOT:
            assert f'<p class="me">{ME}' in answer.text
        else:
            assert answer.status_code == 200
