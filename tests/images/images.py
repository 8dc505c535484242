"""Images made by hand, byte for byte: good ones for any form and compression, and whatever a stranger could send."""

import functools
import gzip
import hashlib
import io
import json
import subprocess
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
AMD64 = {"os": "linux", "architecture": "amd64"}


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encoded(value):
    return json.dumps(value, separators=(",", ":")).encode()


def file(name, content=b"", mode=0o644, uid=0, gid=0, **records):
    """A file of a tar. Records are pax headers."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid, info.pax_headers = len(content), mode, uid, gid, records
    return info, content


def other(kind, name, target="", mode=0o755, uid=0, gid=0, **records):
    """Anything else: a directory, a link, a device."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.uid, info.gid, info.pax_headers = kind, target, mode, uid, gid, records
    return info, b""


def folder(name, **rest):
    return other(tarfile.DIRTYPE, name, **rest)


def symlink(name, target):
    return other(tarfile.SYMTYPE, name, target, 0o777)


def hard_link(name, target):
    return other(tarfile.LNKTYPE, name, target)


def attribute(name, value):
    """An extended attribute, as a pax record."""
    return {"SCHILY.xattr." + name: value.decode("utf-8", "surrogateescape")}


def capability(number):
    """`security.capability`, version 2: permitted and effective (linux/capability.h)."""
    low, high = (1 << number, 0) if number < 32 else (0, 1 << number - 32)
    words = [0x0200_0001, low, 0, high, 0]
    return attribute("security.capability", b"".join(word.to_bytes(4, "little") for word in words))


def tar(*entries):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zstd(data, *flags):
    return subprocess.run(["zstd", "-q", "-c", *flags], input=data, stdout=subprocess.PIPE, check=True).stdout


class Layer:
    """A tar as it is, and as it is sent."""

    def __init__(self, content, how="gzip"):
        self.content, self.how = content, how
        self.sent = {"plain": lambda data: data, "gzip": lambda data: gzip.compress(data, 1, mtime=0), "zstd": zstd}[how](content)
        self.diff_id = digest(content)

    def described(self):
        suffix = "" if self.how == "plain" else "+" + self.how
        return {"mediaType": LAYER + suffix, "digest": digest(self.sent), "size": len(self.sent)}


class Image:
    """`run` is the `config` of the image's config: User, Env, Cmd."""

    def __init__(self, *layers, run=None, platform=None, diff_ids=None):
        self.layers = layers
        ids = diff_ids or [layer.diff_id for layer in layers]
        self.config = encoded({**(platform or AMD64), "config": run or {}, "rootfs": {"type": "layers", "diff_ids": ids}})

    @property
    def manifest(self):
        config = {"mediaType": CONFIG, "digest": digest(self.config), "size": len(self.config)}
        layers = [layer.described() for layer in self.layers]
        return encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers})

    @property
    def blobs(self):
        return {digest(data): data for data in [self.config, *(layer.sent for layer in self.layers)]}

    def described(self, **rest):
        return {"mediaType": MANIFEST, "digest": digest(self.manifest), "size": len(self.manifest), **rest}

    def layout(self):
        """An OCI layout, as a tar."""
        return layout([self.described()], {digest(self.manifest): self.manifest, **self.blobs})

    def saved(self, *names):
        """As `docker save` writes it."""
        config, number = digest(self.config)[7:] + ".json", range(len(self.layers))
        entry = {"Config": config, "RepoTags": list(names) or None, "Layers": [f"{place}/layer.tar" for place in number]}
        layers = [file(f"{place}/layer.tar", self.layers[place].content) for place in number]
        return tar(*layers, file(config, self.config), file("manifest.json", encoded([entry])))


def index(entries):
    return encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})


def layout(entries, blobs):
    files = [file("blobs/sha256/" + name.removeprefix("sha256:"), data) for name, data in blobs.items()]
    return tar(file("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'), file("index.json", index(entries)), *files)


@functools.cache
def busybox():
    """The entries of the smallest system that can be used: one program with many names, root and an ordinary user."""
    with open("/bin/busybox", "rb") as program:
        content = program.read()
    names = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    links = [hard_link(f"bin/{name}", "bin/busybox") for name in names if name != "busybox"]
    people = b"root:x:0:0:root:/root:/bin/sh\nada:x:1234:1234::/home/ada:/bin/sh\n"
    return (
        *(folder(name) for name in ("bin", "etc", "root", "home", "srv")),
        folder("tmp", mode=0o1777),
        folder("home/ada", uid=1234, gid=1234),
        file("bin/busybox", content, 0o755),
        *links,
        file("etc/passwd", people),
        file("etc/group", b"root:x:0:\nada:x:1234:\n"),
    )


def folders():
    """The beginning of a root that nobody runs."""
    return tuple(folder(name) for name in ("etc", "home", "srv"))
