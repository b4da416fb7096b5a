"""An ssh server of the tests' own: on loopback, with its own keys, as the user who runs them."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from pathlib import Path

HOSTS = ("127.0.0.1", "127.0.0.2")
"""What it listens on: two hosts, for all that ssh can tell."""


def find_sshd() -> str | None:
    """The server, which is not on every path."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    return shutil.which("sshd", path=path)


class SshServer:
    """Runs from the first use to `end`. ``ssh`` is the command that reaches it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = find_sshd()
        assert program is not None
        if os.geteuid() == 0:  # what its service would make
            os.makedirs("/run/sshd", 0o755, exist_ok=True)
        for name in ("host_key", "user_key"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL, timeout=20)
        shutil.copy(directory / "user_key.pub", directory / "authorized_keys")
        for _ in range(5):  # somebody else may take the port in between
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                self.port = sock.getsockname()[1]
            self._write_configurations()
            with open(directory / "log", "ab") as log:
                self.process = subprocess.Popen(
                    [program, "-D", "-e", "-f", str(directory / "sshd_config")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            if self._answers():
                break
            self.end()
        else:
            raise AssertionError((directory / "log").read_text())
        self.ssh = f"ssh -F {shlex.quote(str(directory / 'ssh_config'))}"

    def _write_configurations(self) -> None:
        directory = self.directory
        (directory / "sshd_config").write_text(
            f"Port {self.port}\n"
            + "".join(f"ListenAddress {host}\n" for host in HOSTS)
            + f"HostKey {directory}/host_key\n"
            f"AuthorizedKeysFile {directory}/authorized_keys\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        )
        key = (directory / "host_key.pub").read_text()
        names = ("localhost", *HOSTS)
        known = "".join(f"[{name}]:{self.port} {key}" for name in names)
        (directory / "known_hosts").write_text(known)
        (directory / "ssh_config").write_text(
            "Host node1\n  HostName 127.0.0.1\nHost node2\n  HostName 127.0.0.2\n"
            f"Host *\n  Port {self.port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {directory}/user_key\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {directory}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  AddressFamily inet\n"
        )

    def _answers(self) -> bool:
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                with socket.create_connection((HOSTS[1], self.port), 1) as sock:
                    return sock.recv(4) == b"SSH-"
            except OSError:
                time.sleep(0.02)
        return False

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)
