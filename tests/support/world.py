"""A world of its own: private network and mounts, where every name below one domain leads to loopback.

Clients that are told a domain and nothing else can then be tested as they are, without touching the machine's own
names, and with port 443 free.
"""

import pathlib
import socket
import struct
import subprocess
import sys


class World:
    def __init__(self, folder, domain):
        self.domain = domain
        names = pathlib.Path(folder) / "resolv.conf"
        names.write_text("nameserver 127.0.0.1\noptions timeout:2 attempts:2\n")
        inside = [sys.executable, str(pathlib.Path(__file__).resolve()), domain, str(names)]
        self.keeper = subprocess.Popen(["unshare", "--net", "--mount", *inside], stdout=subprocess.PIPE, text=True)
        said = self.keeper.stdout.readline()
        if said != "ready\n":
            raise AssertionError(f"a world with {domain} did not come up: {said!r}")
        self.inside = ["nsenter", f"--target={self.keeper.pid}", "--net", "--mount", "--"]

    def run(self, *command, environment=None, seconds=120, **kwargs):
        """Runs a command inside; its environment is what is given, and nothing else but where programs are."""
        clean = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", **(environment or {})}
        return subprocess.run(
            [*self.inside, *command], env=clean, capture_output=True, text=True, timeout=seconds, **kwargs
        )

    def end(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()


def answer(question, domain):
    """One DNS answer (RFC 1035): the A record of names below the domain; nothing else exists."""
    at, labels = 12, []
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode().lower())
        at += question[at] + 1
    end = at + 5
    kind = struct.unpack("!H", question[at + 1 : at + 3])[0]
    name = ".".join(labels)
    ours = name == domain or name.endswith("." + domain)
    record = struct.pack("!HHHIH4s", 0xC00C, 1, 1, 1, 4, socket.inet_aton("127.0.0.1")) if ours and kind == 1 else b""
    flags = 0x8580 if ours else 0x8583
    return question[:2] + struct.pack("!HHHHH", flags, 1, 1 if record else 0, 0, 0) + question[12:end] + record


def main():
    domain, names = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "--bind", names, "/etc/resolv.conf"], check=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 53))
        print("ready", flush=True)
        while True:
            question, peer = listener.recvfrom(4096)
            listener.sendto(answer(question, domain), peer)


if __name__ == "__main__":
    main()
