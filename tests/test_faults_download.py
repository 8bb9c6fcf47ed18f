"""Downloads from a server that is silent, stalls, breaks off or sends other bytes."""

import hashlib
import socket
import threading

import pytest
import yaml

import faults
from conftest import copy_tree
from gradleak.data import download
from refusals import refused
from settings_files import whole

CONTENT = b"0123456789" * 1000
PATIENCE = 0.5


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", (PATIENCE, PATIENCE))


@pytest.fixture
def silent():
    """A server that accepts, sends `begin` of a reply, and then nothing more."""
    sockets, begin = [socket.create_server(("127.0.0.1", 0))], []

    def serve():
        while True:
            try:
                connection, _ = sockets[0].accept()
            except OSError:
                return
            sockets.append(connection)
            if begin:
                connection.recv(65536)
                connection.sendall(begin[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/file.bin", begin
    sockets[0].shutdown(socket.SHUT_RDWR)
    for each in list(sockets):
        each.close()
    thread.join()


def remote(url):
    return download.RemoteFile("file.bin", (url,), hashlib.md5(CONTENT).hexdigest())


def test_a_server_that_never_answers_is_told_after_the_time_out(tmp_path, silent, patience):
    url, _ = silent
    said = f"Cannot download file.bin ({url}: no answer within {PATIENCE} s); "
    with refused(said, "run again to resume"):
        download.fetch(remote(url), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_stalls_is_told_and_the_next_call_goes_on(tmp_path, silent, server, patience):
    url, begin = silent
    begin.append(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + CONTENT[:3000])
    with refused(f"{url}: sent nothing for {PATIENCE} s after 3000 bytes of 10000"):
        download.fetch(remote(url), tmp_path, attempts=1)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:3000]
    server.files["file.bin"] = CONTENT
    path = download.fetch(remote(f"{server.url}/file.bin"), tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.requests == [("file.bin", "bytes=3000-")]


def test_the_limits_are_those_of_the_manual():
    assert download.TIMEOUT == (10.0, 60.0) and download.ATTEMPTS == 3


@pytest.mark.slow
def test_a_rule_that_downloads_resumes_and_refuses_other_bytes(tmp_path, server):
    """Through Snakemake: three cuts, then a resumed transfer whose bytes are not the official."""
    folder = copy_tree(tmp_path / "tree")
    settings = whole(folder / "config.yaml")
    settings["data"] = {"root": "data", "mirrors": {"cifar10": server.url}, "imagenet": None}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    name, target = "cifar-10-python.tar.gz", "data/raw/cifar10/MD5SUMS"
    server.files[name], server.cuts = CONTENT, [1000, 1000, 1000]
    raw = folder / "data/raw/cifar10"

    def asked():
        done = faults.run(folder, "--", target)
        assert done.returncode == 1
        return faults.words(done.stdout)

    said = asked()
    assert f"gradleak: Cannot download {name}" in said
    assert "broke off after 3000 bytes of 10000" in said and "run again to resume" in said
    assert (raw / f"{name}.part").read_bytes() == CONTENT[:3000]

    said = asked()
    assert server.requests[3] == (name, "bytes=3000-")
    assert f"sent a truncated or altered {name}" in said and "it was deleted, so try again" in said
    assert list(raw.glob("*")) == []
