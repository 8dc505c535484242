//! What the doctor tells of this host, checked against the host.

use cove_engine::doctor::{Finding, Need, Verdict, can_run, examine};

fn named<'a>(findings: &'a [Finding], name: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.name == name).unwrap_or_else(|| panic!("no finding {name:?}"))
}

#[test]
fn every_finding_that_is_not_ok_has_a_remedy_and_names_are_unique() {
    let findings = examine(&[]);
    for finding in &findings {
        assert!(!finding.detail.is_empty(), "{finding:?}");
        assert_eq!(finding.remedy.is_none(), finding.verdict == Verdict::Ok, "{finding:?}");
    }
    let mut names: Vec<&str> = findings.iter().map(|finding| finding.name.as_str()).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn what_the_tests_of_this_crate_need_is_found() {
    let findings = examine(&[]);
    if !cove_testkit::need::root() {
        assert_eq!(named(&findings, "privilege").verdict, Verdict::Weaker);
        return;
    }
    for name in ["user namespaces", "mount namespaces", "overlay in user namespaces", "new mount interface", "seccomp"]
    {
        let finding = named(&findings, name);
        assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
        assert_eq!(finding.need, Need::Required);
    }
    assert!(can_run(&findings));
    assert!(named(&findings, "kernel").detail.starts_with("Linux "));
    let reboot = named(&findings, "pause over a reboot");
    let told = reboot.detail.to_lowercase();
    assert!(told.contains("processes do not survive a reboot") && told.contains("criu"), "{reboot:?}");
    assert_eq!(reboot.need, Need::Useful);
}

#[test]
fn an_examination_leaves_nothing_behind() {
    let look = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        // Of this process alone: other tests examine the host at the same time.
        let own = format!("cove-doctor-{}", std::process::id());
        let groups = Vec::from_iter(walk("/sys/fs/cgroup").into_iter().filter(|path| path.contains(&own)));
        let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
        (mounts, groups, children)
    };
    let before = look();
    examine(&[]);
    assert_eq!(look(), before);
}

fn walk(path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path().display().to_string();
            found.extend(walk(&path));
            found.push(path);
        }
    }
    found
}

#[test]
fn findings_are_data() {
    let findings = examine(&[]);
    let text = serde_json::to_string(&findings).unwrap();
    let again: Vec<Finding> = serde_json::from_str(&text).unwrap();
    assert_eq!(again, findings);
    assert!(text.contains(r#""verdict":"ok""#));
}
