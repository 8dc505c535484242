"""Tags: words that lead to one of a template's builds."""

import pytest
from conftest import name
from e2b import Template


@pytest.fixture(scope="module")
def built(server):
    """A template with two builds: the newer has the tag `v2`, the older `v1`."""
    called = name("tags")
    options = {"cpu_count": 1, "memory_mb": 512}
    first = Template.build(Template().from_template("base").run_cmd("echo 1 > /home/user/v"), f"{called}:v1", **options)
    second = Template.build(
        Template().from_template("base").run_cmd("echo 2 > /home/user/v"), called, tags=["v2", "V2"], **options
    )
    return called, first, second


@pytest.mark.timeout(300)
def test_a_tag_leads_to_its_build(create, built):
    called, first, second = built
    assert first.template_id == second.template_id and first.build_id != second.build_id
    assert (first.tags, second.tags) == (["v1"], ["v2"])
    version = lambda reference: create(reference).files.read("/home/user/v")
    assert version(f"{called}:v1") == "1\n" and version(f"{called}:v2") == "2\n"
    assert version(f"{called}:{first.build_id}") == "1\n"
    assert version(f"{first.template_id}:v1") == "1\n"


@pytest.mark.timeout(300)
def test_tags_are_set_listed_and_removed(server, create, built):
    called, first, _ = built
    told = Template.assign_tags(f"{called}:v1", ["stable", "default"])
    assert told.build_id == first.build_id and told.tags == ["stable", "default"]
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(called)}
    assert tags["stable"] == tags["v1"] == tags["default"] == first.build_id != tags["v2"]
    assert create(called).files.read("/home/user/v") == "1\n"
    get = lambda query: server.ask("GET", f"/e2b/templates/{called}/tags/{query}", server.key)[1]
    assert get("count") == {"total": len(tags)}
    assert get("exists?tag=Stable") == {"exists": True, "normalizedTag": "stable"}
    groups = get("groups?sort=name_asc&tagsLimit=2")
    assert [group["tag"] for group in groups["tags"]] == ["default", "stable"] and groups["nextCursor"]
    rest = get(f"groups?sort=name_asc&tagsCursor={groups['nextCursor']}")
    assert [group["tag"] for group in rest["tags"]] == ["v1", "v2"] and rest["nextCursor"] is None
    assert get("stable/assignments")["data"][0]["buildID"] == first.build_id
    Template.remove_tags(called, ["stable"])
    assert "stable" not in {tag.tag for tag in Template.get_tags(called)}
    assert Template.exists(called)


def test_what_is_no_tag_is_refused(server, built):
    called, _, _ = built
    for wrong in (":x", f"{called}:", "", "a b", "6f3a1c1e-0000-4000-8000-00000000abcd"):
        with pytest.raises(Exception):
            Template.assign_tags(f"{called}:v1", wrong)
    with pytest.raises(Exception, match="default"):
        Template.remove_tags(called, "default")
    with pytest.raises(Exception, match="not found"):
        Template.assign_tags(f"{called}:nobody", "x")
    with pytest.raises(Exception, match="not found"):
        Template.get_tags(name("nobody"))
    status, told = server.ask("POST", "/e2b/templates/tags", server.key, {"target": called, "tags": ["x"], "force": True})
    assert status == 400 and "force" in told["message"]


def test_a_built_in_template_has_one(server):
    assert [tag.tag for tag in Template.get_tags("base")] == ["default"]
    status, _ = server.ask("DELETE", "/e2b/templates/tags", server.key, {"name": "base", "tags": ["x"]})
    assert status == 403
