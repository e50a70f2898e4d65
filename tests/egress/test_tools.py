"""Whole tools: git over HTTPS, and pip with a package index. Known fault 30."""

import shutil
import subprocess
import zipfile

import pytest


@pytest.fixture(scope="module")
def guest(world):
    www = world.dir / "www/file"
    src = world.dir / "src"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(src)]
    subprocess.run(["git", "init", "-q", str(src)], check=True)
    (src / "README").write_text("hello\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(src), str(www / "repo.git")], check=True)
    subprocess.run(["git", "-C", str(www / "repo.git"), "update-server-info"], check=True)
    (www / "simple/demo").mkdir(parents=True)
    wheel = www / "simple/demo/demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as z:
        z.writestr("demo.py", "answer = 42\n")
        z.writestr("demo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        z.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("demo-1.0.dist-info/RECORD", "")
    (www / "simple/demo/index.html").write_text('<a href="demo-1.0-py3-none-any.whl">demo-1.0-py3-none-any.whl</a>')
    g = world.guest({"mode": "allow", "allow": ["git.test", "pypi.test"]})
    g.ph = g.secrets({"name": "T", "value": "token", "hosts": ["git.test"], "in": ["header", "basic"]})
    return g


def test_git_clone_over_https(guest, world):
    """Through the credential proxy: the token goes as basic credentials, as git hosts want it."""
    where = world.dir / "clone"
    url = f"https://user:{guest.ph['T']}@git.test/file/repo.git"
    r = guest.run("env", f"GIT_SSL_CAINFO={guest.bundle}", "git", "clone", "-q", url, str(where))
    assert r.returncode == 0 and (where / "README").read_text() == "hello\n", r


def test_git_refusal_is_readable(guest, world):
    r = guest.run("env", f"GIT_SSL_CAINFO={guest.bundle}", "git", "ls-remote", "https://other.test/file/repo.git")
    assert r.returncode == 128 and "Could not resolve host: other.test" in r.stderr


@pytest.mark.skipif(not shutil.which("pip3"), reason="needs pip3")
def test_pip_download(guest, world):
    env = [f"{v}={guest.bundle}" for v in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")]
    r = guest.run(
        "env", *env, "pip3", "download", "-q", "--no-deps", "--retries", "0", "--isolated",
        "-d", str(world.dir / "wheels"), "--index-url", "https://pypi.test/file/simple/", "demo",
    )  # fmt: skip
    assert r.returncode == 0 and (world.dir / "wheels/demo-1.0-py3-none-any.whl").exists(), r
