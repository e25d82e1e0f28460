"""The environment that a kubelet gives a container: a network, a root file system, a user, files.

Linux namespaces make it, as root or as an ordinary user. Nothing of it outlives its process."""

import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess

NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
PR_SET_NO_NEW_PRIVS = 38
UP = 1
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def new_user(inside_uid, inside_gid):
    """A user namespace, for those who are not root, in which the own user is `inside_uid`."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEWUSER)
    pathlib.Path("/proc/self/setgroups").write_text("deny")
    pathlib.Path("/proc/self/uid_map").write_text(f"{inside_uid} {uid} 1")
    pathlib.Path("/proc/self/gid_map").write_text(f"{inside_gid} {gid} 1")


def own_network():
    """Leaves the machine's network for one with a loopback only, where every port is free."""
    if os.geteuid() != 0:
        new_user(os.geteuid(), os.getegid())
    call("unshare", NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", UP))  # SIOCSIFFLAGS


def mount(source, target, flags, kind=None):
    call("mount", os.fsencode(source), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags), None)


def bare_root(folder, program, entrypoint):
    """A root file system with a program, the libraries that it names, and certificates: what the image has."""
    for name in ("dev", "proc", "etc/ssl/certs", "tmp", "usr/local/bin", "var/lib/blindpipe/objects"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "var/lib/blindpipe/objects").chmod(0o777)
    (folder / "etc/hosts").write_text("127.0.0.1 localhost chat-admin\n")
    (folder / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", folder / "etc/ssl/certs/")
    target = folder / entrypoint.lstrip("/")
    try:
        os.link(program, target)
    except OSError:
        shutil.copy2(program, target)
    for library in libraries(program):
        copy = folder / library.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library, copy)
    return folder


def libraries(program):
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return re.findall(r"(/\S+)", listed)


def enter(root, mounts, uid, gid, groups):
    """Run between fork and exec: a read-only root with `mounts` [(source, target, is read-only)], as the user."""
    if os.geteuid() == 0:
        call("unshare", NEWNS)
    else:
        new_user(uid, gid)
        call("unshare", NEWNS)
    mount("none", "/", MS_REC | MS_PRIVATE)
    mount(root, root, MS_BIND)
    for name in ("dev", "proc"):
        mount(f"/{name}", f"{root}/{name}", MS_BIND | MS_REC)
    mount(root, root, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    for source, target, is_read_only in mounts:
        mount(source, f"{root}{target}", MS_BIND)
        if is_read_only:
            mount(source, f"{root}{target}", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)
    os.chroot(root)
    os.chdir("/")
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
