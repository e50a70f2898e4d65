"""Files: bytes both ways, ranges, digests, folders; what cannot be done has a name."""
import hashlib
import http.client
import os
import socket
import uuid

import pytest

from test_api_sandboxes import check_shape, wait_until


@pytest.fixture
def folder(api, sandbox):
    path = "/tmp/files-" + uuid.uuid4().hex
    answer = api.post(sandbox + "/files/mkdir", {"path": path})
    assert answer.status == 200, answer.body
    yield path
    api.post(sandbox + "/files/remove", {"path": path, "recursive": True})


def put(api, sandbox, path, data, headers=None, **query):
    return api.call("PUT", sandbox + "/files", data, headers=headers, path=path, **query)


def get(api, sandbox, path, headers=None, **query):
    return api.call("GET", sandbox + "/files", headers=headers, path=path, **query)


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 1000, 262144, 262145, 5_000_000])
def test_there_and_back(api, sandbox, folder, size):
    data = os.urandom(size)
    path = folder + "/a ü+%&.bin"
    written = put(api, sandbox, path, data)
    assert written.status == 200, written.body
    check_shape(api, "File", written.json)
    assert (written.json["path"], written.json["size"], written.json["mode"]) == (path, size, "0644")
    assert written.headers["X-Content-Sha256"] == digest(data)
    read = get(api, sandbox, path)
    assert read.body == data
    assert read.headers["X-File-Size"] == str(size)
    if size <= 262144:
        assert read.headers["X-Content-Sha256"] == digest(data)


def test_a_large_file_has_its_digest_in_the_trailer(api, sandbox, folder):
    data = os.urandom(1 << 20)
    put(api, sandbox, folder + "/big", data)
    target = f"{sandbox}/files?path={folder}/big"
    with socket.create_connection((api.host, api.port), timeout=60) as s:
        s.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  f"Authorization: Bearer {api.key}\r\n\r\n".encode())
        answer = b""
        while piece := s.recv(1 << 16):
            answer += piece
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert b"Trailer: X-Content-Sha256" in head
    tail = answer[-200:]
    assert b"\r\n0\r\n" in tail
    assert f"X-Content-Sha256: {digest(data)}".encode() in tail


def test_a_chunked_upload(api, sandbox, folder):
    pieces = [os.urandom(70000) for _ in range(40)]
    c = api.connect()
    c.request("PUT", f"{sandbox}/files?path={folder}/chunked", iter(pieces), api.headers(),
              encode_chunked=True)
    assert c.getresponse().status == 200
    assert get(api, sandbox, folder + "/chunked").body == b"".join(pieces)


@pytest.mark.parametrize("header,part", [
    ("bytes=0-3", (0, 4)), ("bytes=5-", (5, 10)), ("bytes=-2", (8, 10)), ("bytes=8-99", (8, 10)),
    ("bytes=-99", (0, 10))])
def test_ranges(api, sandbox, folder, header, part):
    data = b"0123456789"
    put(api, sandbox, folder + "/r", data)
    read = get(api, sandbox, folder + "/r", headers={"Range": header})
    assert (read.status, read.body) == (206, data[part[0]:part[1]])
    assert read.headers["Content-Range"] == f"bytes {part[0]}-{part[1] - 1}/10"
    assert read.headers["X-Content-Sha256"] == digest(read.body)


def test_a_range_behind_the_end(api, sandbox, folder):
    put(api, sandbox, folder + "/r", b"0123456789")
    read = get(api, sandbox, folder + "/r", headers={"Range": "bytes=10-"})
    assert (read.status, read.code) == (416, "range_not_satisfiable")
    assert read.headers["Content-Range"] == "bytes */10"
    for ignored in ("bytes=1-2,4-5", "lines=1-2", "bytes=x-", "bytes=3-1"):
        read = get(api, sandbox, folder + "/r", headers={"Range": ignored})
        assert (read.status, read.body) == (200, b"0123456789")


def test_a_digest_that_is_wrong_leaves_the_old_file(api, sandbox, folder):
    put(api, sandbox, folder + "/d", b"old")
    answer = put(api, sandbox, folder + "/d", b"new", headers={"X-Content-Sha256": digest(b"x")})
    assert (answer.status, answer.code) == (400, "checksum_mismatch")
    assert get(api, sandbox, folder + "/d").body == b"old"
    right = put(api, sandbox, folder + "/d", b"new",
                headers={"X-Content-Sha256": digest(b"new").upper()})
    assert right.status == 200
    assert get(api, sandbox, folder + "/d").body == b"new"
    assert put(api, sandbox, folder + "/d", b"", headers={"X-Content-Sha256": "z"}).code == (
        "header_invalid")


def test_an_upload_that_breaks_off_leaves_the_old_file(api, sandbox, folder):
    put(api, sandbox, folder + "/b", b"old")
    c = api.connect()
    c.putrequest("PUT", f"{sandbox}/files?path={folder}/b")
    for k, v in api.headers({"Content-Length": "1000000"}).items():
        c.putheader(k, v)
    c.endheaders()
    c.send(b"x" * 500000)
    c.sock.close()
    c.close()
    assert get(api, sandbox, folder + "/b").body == b"old"


    def names():
        listed = api.get(sandbox + "/files/list", path=folder).json["data"]
        return [f["path"] for f in listed]
    assert wait_until(lambda: names() == [folder + "/b"]), names()


def test_mode_parents_and_stat(api, sandbox, folder):
    path = folder + "/x/y/z.sh"
    assert put(api, sandbox, path, b"#!", mode="0755").code == "not_found"
    assert put(api, sandbox, path, b"#!", mode="0755", makeParents="true").status == 200
    stat = api.get(sandbox + "/files/stat", path=path).json
    check_shape(api, "File", stat)
    assert (stat["type"], stat["mode"], stat["size"]) == ("file", "0755", 2)
    put(api, sandbox, path, b"#!/")
    assert api.get(sandbox + "/files/stat", path=path).json["mode"] == "0755"


def test_list_move_remove(api, sandbox, folder):
    for name in ("a", "d/b", "d/e/c"):
        put(api, sandbox, f"{folder}/{name}", name.encode(), makeParents="true")

    def names(depth):
        answer = api.get(sandbox + "/files/list", path=folder, depth=depth).json
        check_shape(api, "FileList", answer)
        return {f["path"][len(folder):] for f in answer["data"]}
    assert names(1) == {"/a", "/d"}
    assert names(3) == {"/a", "/d", "/d/b", "/d/e", "/d/e/c"}
    short = api.get(sandbox + "/files/list", path=folder, depth=3, limit=2).json
    assert (len(short["data"]), short["truncated"]) == (2, True)

    move = {"from": folder + "/a", "to": folder + "/d/b"}
    assert api.post(sandbox + "/files/move", move).code == "exists"
    assert api.post(sandbox + "/files/move", {**move, "overwrite": True}).status == 200
    assert get(api, sandbox, folder + "/d/b").body == b"a"
    remove = {"path": folder + "/d"}
    assert api.post(sandbox + "/files/remove", remove).code == "not_empty"
    assert api.post(sandbox + "/files/remove", {**remove, "recursive": True}).status == 200
    assert names(16) == set()


def test_fault_42_links_are_shown_and_not_followed(api, sandbox, folder):
    made = api.post(sandbox + "/exec", {"argv": ["ln", "-s", "/etc", folder + "/out"]})
    assert made.json["exitCode"] == 0
    put(api, sandbox, folder + "/in", b"x")
    listed = api.get(sandbox + "/files/list", path=folder, depth=16).json["data"]
    assert {(f["path"], f["type"], f.get("target")) for f in listed} == {
        (folder + "/out", "symlink", "/etc"), (folder + "/in", "file", None)}
    removed = api.post(sandbox + "/files/remove", {"path": folder, "recursive": True})
    assert removed.status == 200
    assert api.get(sandbox + "/files/stat", path="/etc/passwd").json["type"] == "file"


def test_a_folder_is_no_file(api, sandbox, folder):
    assert get(api, sandbox, folder).code == "is_a_directory"
    assert put(api, sandbox, folder, b"x").code in ("is_a_directory", "exists")
    put(api, sandbox, folder + "/f", b"x")
    assert get(api, sandbox, folder + "/f/g").code == "not_a_directory"
    assert api.get(sandbox + "/files/list", path=folder + "/f").code == "not_a_directory"
    missing = get(api, sandbox, folder + "/none")
    assert (missing.status, missing.code) == (404, "not_found")


def test_files_of_the_kernel_have_no_size(api, sandbox):
    read = get(api, sandbox, "/proc/version")
    assert read.status == 200
    assert read.body.startswith(b"Linux version")


@pytest.mark.parametrize("path", ["relative", "", "tmp/x", "."])
def test_paths_that_are_not_absolute(api, sandbox, path):
    for answer in (get(api, sandbox, path), put(api, sandbox, path, b"x"),
                   api.get(sandbox + "/files/stat", path=path),
                   api.get(sandbox + "/files/list", path=path)):
        assert (answer.status, answer.code, answer.fields()) == (400, "validation_failed", {"path"})
    assert api.post(sandbox + "/files/move", {"from": "a", "to": "b"}).fields() == {"from", "to"}


def test_other_bad_requests(api, sandbox):
    assert api.call("GET", sandbox + "/files").fields() == {"path"}
    assert api.call("GET", sandbox + "/files?path=/tmp/%00x").code == "uri_malformed"
    assert put(api, sandbox, "/tmp/x", b"", mode="999").fields() == {"mode"}
    assert put(api, sandbox, "/tmp/x", b"", mode="100000").fields() == {"mode"}
    assert api.get(sandbox + "/files/list", path="/tmp", depth=17).fields() == {"depth"}
    assert api.call("GET", "/v1/sandboxes/none/files?path=/x").code == "sandbox_not_found"


def test_a_refused_upload_is_answered_after_its_body(api, sandbox):
    """The client is still sending when the sandbox says no; it must get the reason."""
    c = api.connect()
    answer = api.call("PUT", sandbox + "/files?path=/no/such/folder/x", os.urandom(8 << 20),
                      connection=c)
    assert (answer.status, answer.code) == (404, "not_found")
    assert api.call("GET", "/v1/whoami", connection=c).status == 200


def test_a_download_that_is_left_in_the_middle(api, sandbox, folder):
    put(api, sandbox, folder + "/big", b"x" * (8 << 20))
    c = api.connect()
    c.request("GET", f"{sandbox}/files?path={folder}/big", headers=api.headers())
    response = c.getresponse()
    assert response.read(1000) == b"x" * 1000
    c.sock.close()
    c.close()
    assert get(api, sandbox, folder + "/big").body == b"x" * (8 << 20)
    assert http.client.OK == api.get("/healthz").status
