"""Builds: Dockerfiles with all that belongs to them, secrets, the cache, limits, cancelling, development containers, packages."""

import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile
import time
import zipfile

import pytest
from conftest import run
from house import House, read_all
from images import Image, Layer, file, tar
from server import PROGRAM, wait_for

SECRET = "s3cret-of-the-build-7f1c"


def project(folder, **files):
    """Files by name; `__` in a name is a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def exported(house, template):
    """The layers of a template, lowest first, as tars; and its config."""
    with tarfile.open(fileobj=io.BytesIO(read_all(house, f"/api/templates/{template}/export"))) as archive:
        (entry,) = json.load(archive.extractfile("manifest.json"))
        layers = [tarfile.open(fileobj=archive.extractfile(name)) for name in entry["Layers"]]
        contents = [{member.name: layer.extractfile(member).read() if member.isfile() else None for member in layer} for layer in layers]
        return contents, json.load(archive.extractfile(entry["Config"]))


def test_stages_files_arguments_and_what_is_ignored(house, busy_name, work):
    project(
        work,
        Dockerfile=f"""ARG BASE={busy_name}
FROM $BASE AS maker
ARG WORD=nothing
WORKDIR /make
COPY . .
RUN <<EOF
mkdir /out
for name in $(ls); do echo "$WORD $name"; done > /out/list
EOF

FROM maker AS never
RUN exit 1

FROM $BASE
ENV COLOUR=blue
COPY --from=maker --chown=ada:ada --chmod=640 /out/list /srv/list
COPY <<EOF /srv/inline
colour: $COLOUR
EOF
USER ada
WORKDIR /home/ada
CMD ["sleep", "1000"]
""",
        DOTdockerignore="# not these\n*.log\nsecrets\n!keep.log\n",
        mainDOTpy="print(1)",
        aDOTlog="x",
        keepDOTlog="x",
        secrets__key="x",
    )
    said = house.cove("template", "build", "staged", work, "--build-arg", "WORD=built")
    assert said == "staged\n"
    sandbox = house.create("staged")
    listed = house.within(sandbox, "cat /srv/list").splitlines()
    assert listed == ["built Dockerfile", "built keep.log", "built main.py"]
    assert house.within(sandbox, "stat -c '%U %a' /srv/list; cat /srv/inline; id -un; pwd").split() == ["ada", "640", "colour:", "blue", "ada", "/home/ada"]
    assert "sleep" in house.within(sandbox, "ps")
    house.remove(sandbox)
    # Another stage, by its name.
    said = house.cove("template", "build", "never", work, "--target", "never", code=1)
    assert "exit status 1" in said, said


def test_the_second_time_nothing_is_run_and_only_what_changed_is(house, busy_name, work):
    text = f"FROM {busy_name}\nRUN head -c 20 /dev/urandom | md5sum > /srv/one\nCOPY file /srv/\nRUN head -c 20 /dev/urandom | md5sum > /srv/two\n"
    project(work, Dockerfile=text, file="1")

    def built(*flags):
        """What the steps left, and which were not run."""
        log = subprocess.run(
            [PROGRAM, "template", "build", "cached", str(work), *flags], env=house.environment(), capture_output=True, text=True, timeout=100
        )
        assert log.returncode == 0, log.stderr
        return house.shown("cached", "cat /srv/one; cat /srv/two").splitlines(), log.stderr.count("CACHED")

    first, done = built()
    assert done == 0
    before = house.rows("SELECT COUNT(*) FROM sandboxes")
    assert built() == (first, 3)
    assert house.rows("SELECT COUNT(*) FROM sandboxes")[0][0] == before[0][0] + 1, "a sandbox was made for a step"
    (work / "file").touch()
    assert built() == (first, 3)
    (work / "file").write_text("2")
    changed, done = built()
    assert (changed[0], done) == (first[0], 1) and changed[1] != first[1]
    anew, done = built("--no-cache")
    assert done == 0 and anew[0] != first[0]
    # Another organisation has a cache of its own.
    stranger = house.another_organisation()
    _, log = house.build("cached", {"dockerfile": f"FROM {busy_name}\nRUN head -c 20 /dev/urandom | md5sum > /srv/one\n"}, key=stranger)
    assert "CACHED" not in log, log


def test_a_secret_is_in_no_layer_no_log_and_no_database(house, busy_name, work):
    project(
        work,
        Dockerfile=f"""FROM {busy_name}
RUN --mount=type=secret,id=token cat /run/secrets/token; wc -c < /run/secrets/token > /srv/length
RUN --mount=type=secret,id=token,target=/etc/token.txt,required=true cp /etc/token.txt /tmp/copy; rm /tmp/copy
RUN --mount=type=secret,id=WORD,env=WORD echo $WORD; echo ${{#WORD}} > /srv/second
RUN ls -a /run/secrets /etc/token.txt 2>&1 > /srv/later; true
""",
        tokenDOTtxt=SECRET,
        DOTdockerignore="token.txt",
    )
    flags = ["--secret", f"id=token,src={work}/token.txt", "--secret", "id=WORD"]
    log = subprocess.run(
        [PROGRAM, "template", "build", "secretive", str(work), *flags], env=house.environment(WORD=SECRET), capture_output=True, text=True, timeout=100
    )
    assert log.returncode == 0, log.stderr
    assert "***" in log.stderr and SECRET not in log.stderr, log.stderr
    assert house.shown("secretive", "cat /srv/length /srv/second").split() == [str(len(SECRET))] * 2
    layers, config = exported(house, "secretive")
    assert SECRET not in json.dumps(config)
    for layer in layers:
        assert not any(SECRET.encode() in (content or b"") for content in layer.values())
        assert "etc/token.txt" not in layer and "run/secrets/token" not in layer, sorted(layer)
    # On the disk: every file of every layer, the databases, the log, what was sent.
    found = subprocess.run(["grep", "-rlaF", "--exclude=pool.btrfs", SECRET, house.data, house.log.name], capture_output=True, text=True)
    assert found.returncode == 1, found.stdout + found.stderr
    missing = house.refused("unset", {"dockerfile": (work / "Dockerfile").read_text()}, force=True)
    assert "token" in missing, missing


def test_a_step_that_fails_ends_the_build_with_its_words(house, busy_name):
    said = house.refused("failing", {"dockerfile": f"FROM {busy_name}\nRUN true\nRUN echo oh no >&2; exit 7\n"})
    assert "exit status 7" in said and "oh no" in said, said
    for text, word in [
        (f"FROM {busy_name}\nRUN --security=insecure true\n", "security"),
        (f"FROM {busy_name}\nADD https://example.com/x /x\n", "line 2"),
        (f"FROM {busy_name}\nCOPY nothing /\n", "nothing"),
        (f"FROM {busy_name}\nFLY away\n", "FLY"),
        ("FROM $NOTHING\n", "line 1"),
    ]:
        status, told = house.ask("POST", "/api/templates", house.key, {"name": "wrong", "from": {"dockerfile": text}})
        if status == 202:
            ended = house.end_of(f"/api/templates/{told['template']['id']}/builds/{told['build']['id']}")
            assert ended["state"] == "error", ended
            told = ended["failure"]["message"]
        assert status in (202, 400, 422) and word in str(told), (text, status, told)


def test_a_cancelled_build_ends_at_once_and_leaves_nothing(house, busy_name, work):
    house.settles()
    before = house.files()
    source = {"dockerfile": f"FROM {busy_name}\nRUN echo begun && sleep 1000\n"}
    _, build = house.start_build("cancelled", source)
    wait_for(lambda: "begun" in house.log_of(build).splitlines(), 30, "the step to begin")
    started = time.monotonic()
    status, told = house.ask("POST", f"{build}/cancel", house.key)
    assert status == 200 and told["state"] == "cancelled", told
    wait_for(lambda: house.files() == before and not house.unfinished()["sandboxes"], 20, "its sandbox to be gone")
    assert time.monotonic() - started < 15
    # Ctrl-C of whoever follows.
    project(work, Dockerfile=source["dockerfile"])
    person = subprocess.Popen([PROGRAM, "template", "build", "cancelled", str(work)], env=house.environment(), stderr=subprocess.PIPE, text=True)
    for line in person.stderr:
        if line.split()[-1:] == ["begun"]:
            break
    person.send_signal(signal.SIGINT)
    assert "cancelled" in person.stderr.read()
    assert person.wait(20) == 130
    wait_for(lambda: house.files() == before and not house.unfinished()["sandboxes"], 20, "its sandbox to be gone")
    # A newer build of the same tag ends an older one.
    _, older = house.start_build("overtaken", source)
    house.build("overtaken", {"dockerfile": f"FROM {busy_name}\n"})
    assert "superseded" in house.end_of(older, 20)["failure"]["message"]
    house.settles()


def test_time_is_bounded(place):
    house = House(place / "hasty", "[builds]\ntimeout_seconds = 4\n")
    try:
        started = time.monotonic()
        said = house.refused("slow", {"template": "base", "steps": [{"run": {"command": "sleep 1000"}}]})
        assert "longer than 4 s" in said, said
        assert time.monotonic() - started < 30
        wait_for(lambda: not house.files()["uppers"], 20, "its sandbox to be gone")
    finally:
        house.leave()


def test_disk_memory_and_sizes_are_bounded(tight, busy_name):
    _, log = tight.build("big", {"dockerfile": f"FROM {busy_name}\nRUN dd if=/dev/zero of=/srv/big bs=1M count=100\n"}, expect="error")
    assert "No space left" in log or "Disk quota" in log, log
    # What needs more memory is ended, and nobody else.
    line = "head -c 600000000 /dev/zero | tail -c 500000000 > /dev/null"
    said = tight.refused("hungry", {"dockerfile": f"FROM {busy_name}\nRUN {line}\n"})
    assert "memory" in said or "137" in said, said
    # What is sent, and what is fetched.
    status, told = tight.ask("POST", "/api/images/import?name=huge", tight.key, bytes(17 << 20), {"Content-Type": "application/x-tar"})
    assert status in (400, 413, 422) and "16 MiB" in str(told), (status, told)
    tight.settles()
    tight.build("small", {"dockerfile": f"FROM {busy_name}\nRUN echo fine\n"})


def test_an_image_over_the_limit_is_not_fetched(tight, registry):
    noise = os.urandom(3 << 20)
    name = registry.push("team/too-large", "1", Image(Layer(tar(file("noise", noise)), "plain")))
    said = tight.refused("too-large", {"image": name})
    assert "2 MiB" in said or str(2 << 20) in said, said


def test_a_build_is_alone(house, busy_name):
    """It sees no file and no process of the server, and reaches none of its doors."""
    lines = [
        f"test ! -e {house.data}",
        "test $(ls -d /proc/[0-9]* | wc -l) -lt 20",
        f"! wget -T 3 -q -O - {house.url}/healthz",
        "! env | grep -i -e cove_api -e password",
    ]
    house.build("alone", {"dockerfile": f"FROM {busy_name}\n" + "".join(f"RUN {line}\n" for line in lines)})


def test_a_development_container_becomes_a_template(house, busy_name, work):
    described = {
        "build": {"dockerfile": "Dockerfile", "context": "..", "args": {"WORD": "dev"}},
        "containerEnv": {"COLOUR": "it's \"blue\" $1"},
        "remoteUser": "ada",
        "features": {"./tool": {"version": "2"}},
        "onCreateCommand": "echo created > ~/created",
        "postCreateCommand": ["touch", "/home/ada/after"],
    }
    install = "#!/bin/sh\necho tool $VERSION > /srv/tool\n"
    text = f"FROM {busy_name}\nARG WORD\nCOPY source /srv/source\nRUN echo $WORD > /srv/word\n"
    project(work, DOTdevcontainer__Dockerfile=text, DOTdevcontainer__tool__installDOTsh=install, source="of the project\n")
    (work / ".devcontainer/devcontainer.json").write_text("// a comment\n" + json.dumps(described))
    house.cove("template", "build", "dev", "--devcontainer", work)
    sandbox = house.create("dev")
    shown = house.within(sandbox, "id -un; cat /srv/tool /srv/word /srv/source ~/created; ls ~; echo $COLOUR")
    assert shown == 'ada\ntool 2\ndev\nof the project\ncreated\nafter\ncreated\nit\'s "blue" $1\n', shown
    house.remove(sandbox)
    for field, value in [("privileged", True), ("runArgs", ["--cap-add=ALL"]), ("dockerComposeFile", "x.yml")]:
        (work / ".devcontainer/devcontainer.json").write_text(json.dumps({"image": busy_name, field: value}))
        assert field in house.cove("template", "build", "dev", "--devcontainer", work, code=1)


@pytest.fixture(scope="module")
def debian(house, registry):
    """A real Debian, as one layer that zstd has packed. Gives its name in the registry."""
    packed = pathlib.Path(os.environ["COVE_DEBIAN"]).read_bytes()
    layer = Layer(b"", "plain")
    layer.how, layer.sent = "zstd", packed
    unpacked = subprocess.Popen(["zstd", "-dcq", os.environ["COVE_DEBIAN"]], stdout=subprocess.PIPE)
    layer.diff_id = "sha256:" + run("sha256sum", stdin=unpacked.stdout).split()[0].decode()
    unpacked.wait()
    return registry.push("debian/test", "1", Image(layer, run={"Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"]}))


def deb(folder):
    """A repository of files with one package in it."""
    tree = folder / "greeter"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text("Package: greeter\nVersion: 1.2\nArchitecture: all\nMaintainer: a <a@example.com>\nDescription: greets\n")
    (tree / "DEBIAN/postinst").write_text("#!/bin/sh\nset -e\nadduser --system --group --no-create-home greeter 2>/dev/null || useradd -r greeter\n")
    (tree / "DEBIAN/postinst").chmod(0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/greet").write_text("#!/bin/sh\necho hello from apt\n")
    (tree / "usr/bin/greet").chmod(0o755)
    (folder / "repository").mkdir()
    run("dpkg-deb", "--root-owner-group", "--build", tree, folder / "repository/greeter_1.2_all.deb")
    (folder / "repository/Packages").write_bytes(run("apt-ftparchive", "packages", ".", cwd=folder / "repository"))


def wheel(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("greeter.py", "def greet():\n    return 'hello from pip'\n")
        archive.writestr("greeter-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeter\nVersion: 1.2\n")
        archive.writestr("greeter-1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("greeter-1.2.dist-info/RECORD", "greeter.py,,\ngreeter-1.2.dist-info/METADATA,,\ngreeter-1.2.dist-info/WHEEL,,\ngreeter-1.2.dist-info/RECORD,,\n")


def npm(path):
    described = {"name": "greeter", "version": "1.2.0", "bin": {"greet-node": "greet.js"}}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("package.json", json.dumps(described)), ("greet.js", "#!/usr/bin/env node\nconsole.log('hello from npm')\n")):
            info = tarfile.TarInfo(f"package/{name}")
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))


def test_packages_are_installed_by_apt_pip_and_npm_and_sudo_works(house, debian, work):
    deb(work)
    wheel(work / "greeter-1.2-py3-none-any.whl")
    npm(work / "greeter-1.2.0.tgz")
    project(
        work,
        Dockerfile=f"""FROM {debian}
COPY repository /repository
RUN echo 'deb [trusted=yes] file:/repository ./' > /etc/apt/sources.list && apt-get update && apt-get install -y greeter
COPY *.whl *.tgz /packages/
RUN pip install --no-index --break-system-packages /packages/*.whl
RUN npm install --global --offline --no-audit --no-fund /packages/*.tgz
RUN useradd -m -s /bin/bash dev && echo 'dev ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/dev
USER dev
RUN sudo sh -c 'id -u > /by-sudo'
WORKDIR /home/dev
""",
    )
    house.cove("template", "build", "packages", work, seconds=230)
    sandbox = house.create("packages")
    shown = house.within(sandbox, "greet; python3 -c 'import greeter; print(greeter.greet())'; greet-node; cat /by-sudo; sudo id -u; id -un")
    assert shown.splitlines() == ["hello from apt", "hello from pip", "hello from npm", "0", "0", "dev"]
    assert "1.2" in house.within(sandbox, "dpkg-query -W -f '${Version}' greeter; getent passwd greeter")
    # In a sandbox as in a build.
    house.within(sandbox, "sudo apt-get remove -y greeter && sudo apt-get install -y greeter && greet")
    house.remove(sandbox)
