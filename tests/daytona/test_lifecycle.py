"""A sandbox is made, found, changed, put away, and gone."""

import pytest
from conftest import SDK, needs_newest_sdk, printed, state
from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, Resources


def listed(daytona, **labels):
    if SDK < (0, 190):
        return daytona.list(labels=labels).items
    from daytona import ListSandboxesQuery

    return list(daytona.list(ListSandboxesQuery(labels=labels)))


def test_a_new_sandbox_runs_and_says_what_it_is(sandbox):
    assert state(sandbox) == "started"
    assert sandbox.id and sandbox.organization_id and sandbox.created_at
    assert sandbox.cpu > 0 and sandbox.memory > 0 and sandbox.disk > 0
    assert sandbox.target == "local"
    assert sandbox.get_user_home_dir().startswith("/")
    assert sandbox.get_work_dir().startswith("/")


def test_it_is_found_by_id_and_by_name(daytona):
    made = daytona.create(CreateSandboxFromSnapshotParams(name="findable", labels={"team": "blue"}))
    try:
        assert daytona.get(made.id).name == "findable"
        assert daytona.get("findable").id == made.id
        assert [found.id for found in listed(daytona, team="blue")] == [made.id]
        assert listed(daytona, team="red") == []
        with pytest.raises(Exception, match="already"):
            daytona.create(CreateSandboxFromSnapshotParams(name="findable"))
    finally:
        daytona.delete(made)
    with pytest.raises(Exception, match="not exist"):
        daytona.get(made.id)


def test_a_list_goes_on_past_a_page(server, daytona):
    made = [daytona.create(CreateSandboxFromSnapshotParams(labels={"page": "yes"})) for _ in range(3)]
    try:
        seen, cursor = [], ""
        for _ in range(3):
            _, page = server.ask(
                "GET", f'/daytona/api/sandbox?limit=1&labels=%7B%22page%22%3A%22yes%22%7D&cursor={cursor}', server.key
            )
            seen += [item["id"] for item in page["items"]]
            cursor = page["nextCursor"]
        assert sorted(seen) == sorted(one.id for one in made)
        _, pages = server.ask("GET", "/daytona/api/sandbox/paginated?limit=2&page=2&labels=%7B%22page%22%3A%22yes%22%7D", server.key)
        assert (pages["total"], pages["totalPages"], pages["page"], len(pages["items"])) == (3, 2, 2, 1)
    finally:
        for one in made:
            daytona.delete(one)


def test_files_outlive_a_stop_and_processes_do_not(fresh):
    fresh.fs.upload_file(b"kept", "kept.txt")
    fresh.process.create_session("s")
    fresh.stop()
    assert state(fresh) == "stopped"
    with pytest.raises(Exception, match="stopped"):
        fresh.process.exec("true")
    fresh.start()
    assert state(fresh) == "started"
    assert fresh.fs.download_file("kept.txt") == b"kept"
    assert fresh.process.list_sessions() == []


def test_an_archived_sandbox_comes_back_with_its_files(fresh):
    fresh.fs.upload_file(b"deep", "frozen/deep.txt")
    fresh.stop()
    fresh.archive()
    assert state(fresh) == "archived"
    fresh.start()
    assert fresh.fs.download_file("frozen/deep.txt") == b"deep"


def test_only_a_stopped_sandbox_can_be_archived(fresh):
    with pytest.raises(Exception, match="stop it first"):
        fresh.archive()


def test_labels_and_intervals_are_kept(daytona, fresh):
    assert fresh.set_labels({"a": "1", "b": "2"})["a"] == "1"
    fresh.set_autostop_interval(30)
    fresh.set_auto_archive_interval(60)
    fresh.set_auto_delete_interval(120)
    again = daytona.get(fresh.id)
    assert again.labels == {"a": "1", "b": "2"}
    assert (again.auto_stop_interval, again.auto_archive_interval, again.auto_delete_interval) == (30, 60, 120)
    fresh.set_auto_delete_interval(-1)
    assert daytona.get(fresh.id).auto_delete_interval == -1
    fresh.refresh_activity()
    with pytest.raises(Exception, match="non-negative"):
        fresh.set_autostop_interval(-1)


def test_what_is_asked_for_at_creation_is_there(daytona):
    made = daytona.create(
        CreateSandboxFromSnapshotParams(
            snapshot="base", env_vars={"COLOUR": "green"}, auto_stop_interval=0, auto_delete_interval=60, public=True
        )
    )
    try:
        assert printed(made.process.exec("echo $COLOUR")) == "green\n"
        assert (made.auto_stop_interval, made.auto_delete_interval, made.public) == (0, 60, True)
    finally:
        daytona.delete(made)


def test_an_ephemeral_sandbox_ends_with_its_stop(daytona):
    made = daytona.create(CreateSandboxFromSnapshotParams(ephemeral=True))
    made.stop()
    with pytest.raises(Exception, match="not exist"):
        daytona.get(made.id)


def test_a_sandbox_grows(fresh):
    fresh.resize(Resources(memory=2))
    assert fresh.memory == 2
    with pytest.raises(Exception, match="maximum"):
        fresh.resize(Resources(memory=4000))


def test_what_is_not_there_is_said_by_name(daytona):
    with pytest.raises(Exception, match="snapshot nosuch not found"):
        daytona.create(CreateSandboxFromSnapshotParams(snapshot="nosuch"))
    with pytest.raises(Exception, match="build_failed|nosuch"):
        daytona.create(CreateSandboxFromImageParams(image="registry.invalid/nosuch:1"))
    snapshots = daytona.snapshot.list()
    names = [one.name for one in getattr(snapshots, "items", snapshots)]
    assert "base" in names
    assert daytona.snapshot.get("base").name == "base"


def test_ssh_is_refused_in_words(sandbox):
    with pytest.raises(Exception, match="SSH access is not offered"):
        sandbox.create_ssh_access()


@needs_newest_sdk
def test_a_paused_sandbox_keeps_its_processes(fresh):
    fresh.process.create_session("s")
    fresh.process.execute_session_command("s", request("export KEPT=yes"))
    fresh.pause()
    assert state(fresh) == "paused"
    fresh.start()
    assert fresh.process.execute_session_command("s", request("echo $KEPT")).stdout == "yes\n"


def request(command, **more):
    from daytona import SessionExecuteRequest

    return SessionExecuteRequest(command=command, **more)


@needs_newest_sdk
def test_environment_and_measurements(fresh):
    fresh.update_env({"LATER": "yes"})
    assert fresh.process.exec("echo $LATER").result == "yes\n"
    now = fresh.get_metrics_latest()
    assert now.mem_total > 0 and now.mem_used >= 0 and now.cpu_count >= 1 and now.disk_total > 0


@needs_newest_sdk
def test_a_lifetime_can_be_set(daytona, fresh):
    fresh.set_ttl(10)
    assert daytona.get(fresh.id).auto_destroy_at
    fresh.set_ttl(0)
    assert not daytona.get(fresh.id).auto_destroy_at


def test_an_sdk_that_knows_no_pause_is_told_the_nearest_word(server, fresh):
    server.ask("POST", f"/daytona/api/sandbox/{fresh.id}/pause", server.key)
    old = {"X-Daytona-SDK-Version": "0.155.0"}
    _, seen = server.ask("GET", f"/daytona/api/sandbox/{fresh.id}", server.key, headers=old)
    assert seen["state"] == "stopped"
    _, seen = server.ask("GET", f"/daytona/api/sandbox/{fresh.id}", server.key)
    assert seen["state"] == "paused"




def test_the_inside_is_what_the_original_shows(daytona, fresh):
    assert fresh.user == "daytona"
    assert fresh.get_user_home_dir() == "/home/daytona"
    done = fresh.process.exec("whoami; echo $HOME; pwd; id -u; sudo -n id -u; touch ~/mine /home/user/mine; ls -ld ~user | cut -d' ' -f3")
    assert done.result.split() == ["daytona", "/home/daytona", "/home/daytona", "1000", "0", "daytona"]
    told = fresh.process.exec("echo $DAYTONA_SANDBOX_ID $DAYTONA_SANDBOX_SNAPSHOT $DAYTONA_SANDBOX_USER $DAYTONA_REGION_ID $LANG").result
    assert told.split() == [fresh.id, fresh.snapshot, "daytona", fresh.target, "C.UTF-8"]
    assert fresh.env == {}, "those are not the caller's"
    assert fresh.process.code_run("import os; print(os.environ['DAYTONA_SANDBOX_ID'])").result.strip() == fresh.id


def test_the_user_that_was_asked_for_runs_the_commands(daytona):
    from daytona import CreateSandboxFromSnapshotParams

    sandbox = daytona.create(CreateSandboxFromSnapshotParams(os_user="root", env_vars={"MINE": "1"}))
    try:
        assert (sandbox.user, sandbox.env) == ("root", {"MINE": "1"})
        assert sandbox.process.exec("whoami; pwd; echo $DAYTONA_SANDBOX_USER $MINE").result.split() == ["root", "/root", "root", "1"]
    finally:
        daytona.delete(sandbox)
