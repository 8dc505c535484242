//! What sessions keep has a maximum of their organisation: journals in the database, artifacts in the object store.

use cove_testkit::TestServer;
use serde_json::{Value, json};

const MOST: u64 = 600_000;

fn execute(server: &TestServer, session: &str, code: &str) -> (u16, Value) {
    let body = json!({"session_id": session, "code": code});
    let answer = server.request("POST", "/api/execute", Some(&body));
    (answer.status, answer.json())
}

fn session_on(server: &TestServer, sandbox: &str) -> String {
    let made = server.request("POST", "/api/sessions", Some(&json!({"sandbox_id": sandbox}))).expect_status(201).json();
    made["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn journals_and_what_cells_show_have_a_maximum_and_ended_sessions_give_way() {
    let server = TestServer::start();
    let mut quota = server.request("GET", "/api/organisations/default", None).expect_status(200).json()["quota"].take();
    quota["session_bytes"] = json!(MOST);
    server.request("PUT", "/api/organisations/default/quota", Some(&quota)).expect_status(200);
    let made = server.request("POST", "/api/sandboxes", Some(&json!({}))).expect_status(201).json();
    let sandbox = made["id"].as_str().unwrap();
    let first = session_on(&server, sandbox);

    // Shown, not printed: it counts twice, in the journal and as an artifact.
    let page = "class Page:\n    def _repr_html_(self): return 'x' * 150_000\nPage()";
    let (status, shown) = execute(&server, &first, page);
    assert_eq!((status, shown["artifacts"].as_array().unwrap().len()), (200, 1), "{shown}");
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(execute(&server, &first, page));
    }
    let left_out = answers.iter().any(|(_, answer)| answer["stderr"].to_string().contains("no room to keep"));
    let cut = answers.iter().any(|(_, answer)| answer["artifacts"] == json!([]));
    assert!(left_out && cut, "{answers:?}");
    // What does not fit leaves room for less: it is used up by outputs that become smaller, and by cells that say nothing.
    let sizes = [100_000, 50_000, 25_000, 12_000, 6_000, 3_000, 1_500, 700].into_iter().chain([0; 40]);
    let mut cells = sizes.map(|size| execute(&server, &first, &format!("print('x' * {size})")));
    let (status, refused) = cells.find(|(status, _)| *status != 200).expect("a cell is refused once nothing is left");
    assert_eq!((status, &refused["code"]), (429, &json!("quota_exceeded")), "{refused}");
    let journal = server.request("GET", &format!("/api/sessions/{first}/journal"), None).expect_status(200);
    assert!(journal.body.len() < 2 * MOST as usize, "{} bytes of journal", journal.body.len());

    // A session that ended makes room for one that goes on.
    server.request("DELETE", &format!("/api/sessions/{first}"), None).expect_status(204);
    let second = session_on(&server, sandbox);
    let (status, said) = execute(&server, &second, "print('again')");
    assert_eq!((status, &said["stdout"]), (200, &json!("again\n")), "{said}");
}
