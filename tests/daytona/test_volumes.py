"""Volumes: storage that sandboxes share and that outlives them."""

import pytest
from conftest import needs_newest_sdk, wait_for
from daytona import CreateSandboxFromSnapshotParams, VolumeMount


@pytest.fixture
def volume(daytona, request):
    volume = daytona.volume.create(f"v-{request.node.name}"[:60])
    yield volume
    if volume.name in [one.name for one in daytona.volume.list()]:
        daytona.volume.delete(volume)


def test_a_volume_is_made_found_and_gone(daytona, server):
    made = daytona.volume.create("lasting")
    assert str(getattr(made.state, "value", made.state)) == "ready" and made.organization_id
    assert daytona.volume.get("lasting").id == made.id
    assert daytona.volume.get("lasting", create=True).id == made.id
    assert "lasting" in [one.name for one in daytona.volume.list()]
    with pytest.raises(Exception, match="already"):
        daytona.volume.create("lasting")
    daytona.volume.delete(made)
    assert "lasting" not in [one.name for one in daytona.volume.list()]
    with pytest.raises(Exception, match="not exist|not found"):
        daytona.volume.get("lasting")
    _, every = server.ask("GET", "/daytona/api/volumes?includeDeleted=true", server.key)
    assert {"id": made.id, "state": "deleted"}.items() <= next(one for one in every if one["id"] == made.id).items()
    # The name is free again.
    again = daytona.volume.get("lasting", create=True)
    assert again.id != made.id
    daytona.volume.delete(again)


def test_two_sandboxes_see_the_same_files(daytona, volume):
    whole = [VolumeMount(volume_id=volume.id, mount_path="/home/daytona/shared")]
    one = daytona.create(CreateSandboxFromSnapshotParams(volumes=whole))
    # By its name it is the same.
    other = daytona.create(
        CreateSandboxFromSnapshotParams(volumes=[VolumeMount(volume_id=volume.name, mount_path="/mnt/data")])
    )
    try:
        one.fs.upload_file(b"from one", "/home/daytona/shared/note")
        assert other.fs.download_file("/mnt/data/note") == b"from one"
        assert other.process.exec("echo more >> /mnt/data/note").exit_code == 0
        assert one.process.exec("cat ~/shared/note").result.strip() == "from onemore"
        mounts = [(mount.volume_id, mount.mount_path) for mount in daytona.get(other.id).volumes]
        assert mounts == [(volume.id, "/mnt/data")]
        with pytest.raises(Exception, match="in use"):
            daytona.volume.delete(volume)
        one.stop()
        one.start()
        assert one.fs.download_file("/home/daytona/shared/note") == b"from onemore\n"
    finally:
        daytona.delete(one)
        daytona.delete(other)
    # It outlives them.
    later = daytona.create(CreateSandboxFromSnapshotParams(volumes=whole))
    try:
        assert later.process.exec("cat ~/shared/note").result.strip() == "from onemore"
    finally:
        daytona.delete(later)
    wait_for(lambda: deleted(daytona, volume), what="a volume that nobody has is deleted")


def deleted(daytona, volume):
    try:
        daytona.volume.delete(volume)
    except Exception as error:
        assert "in use" in str(error)
        return False
    return True


@needs_newest_sdk
def test_a_sandbox_sees_a_part_of_a_volume_and_no_more(daytona, volume):
    part = VolumeMount(volume_id=volume.id, mount_path="/mnt/mine", subpath="tenants/a")
    whole = VolumeMount(volume_id=volume.id, mount_path="/mnt/all")
    tenant = daytona.create(CreateSandboxFromSnapshotParams(volumes=[part]))
    owner = daytona.create(CreateSandboxFromSnapshotParams(volumes=[whole]))
    try:
        owner.fs.upload_file(b"another's", "/mnt/all/secret")
        tenant.fs.upload_file(b"mine", "/mnt/mine/file")
        assert owner.fs.download_file("/mnt/all/tenants/a/file") == b"mine"
        assert tenant.process.exec("ls /mnt/mine/.. /mnt/mine; cat /mnt/mine/../secret /mnt/mine/../../secret").result.count("another") == 0
        assert daytona.get(tenant.id).volumes[0].subpath == "tenants/a"
    finally:
        daytona.delete(tenant)
        daytona.delete(owner)


def test_what_cannot_be_mounted_is_said(daytona, volume):
    for mount, reason in [
        (VolumeMount(volume_id="nosuch", mount_path="/mnt/x"), "nosuch not found"),
        (VolumeMount(volume_id=volume.id, mount_path="relative"), "absolute"),
        (VolumeMount(volume_id=volume.id, mount_path="/etc"), "mounted there"),
        (VolumeMount(volume_id=volume.id, mount_path="/mnt/x", subpath="../other"), "'\\.\\.'"),
    ]:
        with pytest.raises(Exception, match=reason):
            daytona.create(CreateSandboxFromSnapshotParams(volumes=[mount]))


def test_another_organisation_sees_none_of_it(server, volume):
    other = server.another_organisation()
    assert server.ask("GET", "/daytona/api/volumes", other) == (200, [])
    for path in [f"/volumes/{volume.id}", f"/volumes/by-name/{volume.name}"]:
        assert server.ask("GET", f"/daytona/api{path}", other)[0] == 404
    assert server.ask("DELETE", f"/daytona/api/volumes/{volume.id}", other)[0] == 404
    mounts = {"volumes": [{"volumeId": volume.id, "mountPath": "/mnt/x"}]}
    status, said = server.ask("POST", "/daytona/api/sandbox", other, mounts)
    assert status == 400 and "not found" in said["message"]
    status, said = server.ask("POST", "/daytona/api/volumes", server.key, {"name": "a", "nmae": "b"})
    assert status == 400 and "unknown field `nmae`" in said["message"]
