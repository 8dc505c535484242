"""A dockerd of the tests' own, from the distribution's packages, and an image for it."""

import io
import os
import pathlib
import shutil
import subprocess
import tarfile

from server import wait_for

DAEMONS = pathlib.Path(os.environ["COVE_DAEMONS"])


class Docker:
    """Its data, its socket, its control groups."""

    def __init__(self, folder):
        folder.mkdir()
        self.folder, self.group = folder, f"cove-docker-{os.getpid()}"
        self.host = f"unix://{folder}/socket"
        path = f"{DAEMONS}/usr/bin:{DAEMONS}/usr/sbin:{os.environ['PATH']}:/usr/sbin:/sbin"
        self.environment = {"PATH": path, "HOME": str(folder), "DOCKER_HOST": self.host}
        flags = ["--data-root", folder / "data", "--exec-root", folder / "exec", "--pidfile", folder / "pid", "--host", self.host]
        quiet = ["--bridge", "none", "--iptables=false", "--cgroup-parent", f"/{self.group}", "--config-file", folder / "none.json"]
        (folder / "none.json").write_text("{}")
        self.log = open(folder / "log", "w")
        command = [str(word) for word in [DAEMONS / "usr/sbin/dockerd", *flags, *quiet]]
        self.process = subprocess.Popen(command, env=self.environment, stdout=self.log, stderr=self.log)
        wait_for(lambda: self.try_it("info").returncode == 0, 40, f"dockerd (see {self.log.name})")

    def try_it(self, *words, **rest):
        command = [DAEMONS / "usr/bin/docker", *(str(word) for word in words)]
        return subprocess.run(command, env=self.environment, capture_output=True, timeout=120, **rest)

    def __call__(self, *words, **rest):
        done = self.try_it(*words, **rest)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:].decode())
        return done.stdout

    def end(self):
        self.process.terminate()
        self.process.wait(40)
        self.log.close()
        # The containers' own mounts go with the daemon; what is left is its storage, mounted onto itself.
        mounted = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
        for path in reversed([path for path in mounted if path.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "-l", path], check=True)
        groups = [pathlib.Path("/sys/fs/cgroup"), *pathlib.Path("/sys/fs/cgroup").iterdir()]
        for group in groups:
            if (group / self.group).is_dir():
                (group / self.group).rmdir()
        shutil.rmtree(self.folder)


def root_of(*programs):
    """The tar of a root with these programs of this machine and the libraries that they are linked with."""
    files, written = set(), io.BytesIO()
    for program in programs:
        path = shutil.which(program)
        assert path, f"this machine has no {program}"
        told = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        files |= {path, *(word for word in told.split() if word.startswith("/"))}
    with tarfile.open(fileobj=written, mode="w") as tar:

        def add(name, kind, mode, data=b"", link=""):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
            tar.addfile(entry, io.BytesIO(data))

        for folder, mode in (("etc", 0o755), ("tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("usr", 0o755)):
            add(folder, tarfile.DIRTYPE, mode)
        for name in ("bin", "sbin", "lib", "lib64"):
            add(f"usr/{name}", tarfile.DIRTYPE, 0o755)
            add(name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
        for path in sorted(files):
            name = path.lstrip("/")
            name = name if name.startswith("usr/") else f"usr/{name}"
            add(name, tarfile.REGTYPE, 0o755, pathlib.Path(path).read_bytes())
        add("etc/passwd", tarfile.REGTYPE, 0o644, b"root:x:0:0:root:/root:/bin/bash\n")
        add("etc/group", tarfile.REGTYPE, 0o644, b"root:x:0:\n")
    return written.getvalue()
