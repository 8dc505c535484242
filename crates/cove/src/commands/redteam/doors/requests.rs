//! Requests that are not what they seem, and requests that are too much: refused, and refused at once.

use std::time::{Duration, Instant};

use cove_probe::Outcome;
use serde_json::{Value, json};

use super::house::House;
use super::wire::{self, overheard};
use super::{Probe, each, held, hung_up, lost, refused};

/// A refusal that takes longer has been work.
const QUICK: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_millis(300);

/// One request, of which a second is hidden in the body or head: no more than one answer may come, and no 2xx.
fn hides_nothing(house: &House, what: &str, request: &str) -> Outcome {
    let request = request.replace("HOST", &house.address);
    match overheard(&house.address, request.as_bytes(), SILENCE) {
        Ok(heard) => {
            let text = String::from_utf8_lossy(&heard);
            let answers: Vec<&str> =
                text.match_indices("HTTP/1.").map(|(at, _)| text[at..].get(9..12).unwrap_or("")).collect();
            match answers.as_slice() {
                [] => held(format!("{what}: hung up")),
                [one] if one.starts_with('4') => held(format!("{what}: {one}")),
                several => lost(format!("{what}: {}", several.join(", "))),
            }
        }
        Err(error) => hung_up(what, &error),
    }
}

fn quick(house: &House, what: &str, ask: impl Fn(&House) -> Outcome) -> Outcome {
    let began = Instant::now();
    let (verdict, detail) = ask(house);
    let took = began.elapsed();
    let health = house.send("GET", "/healthz", &[], "");
    if took > QUICK {
        return lost(format!("{what}: {:.1} s, {detail}", took.as_secs_f64()));
    }
    if !health.is_ok_and(|answer| answer.status == 200) {
        return lost(format!("{what}: the server does not answer afterwards"));
    }
    (verdict, format!("{detail} in {} ms", took.as_millis()))
}

/// A creation with too much in it.
fn too_much(house: &House, what: &str, body: Value) -> Outcome {
    quick(house, what, |house| refused(what, house.ask(Some(&house.stranger), "POST", "/api/sandboxes", &body)))
}

pub fn probes() -> Vec<Probe> {
    let mut all = smuggling();
    all.extend(hosts());
    all.extend(bombs());
    all
}

fn smuggling() -> Vec<Probe> {
    let smuggled = "a request hidden in another is answered for somebody else";
    let cases: [(&str, &str, &str); 12] = [
        (
            "cannot_smuggle_by_length_and_chunks",
            "both lengths",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_two_lengths",
            "two lengths",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_a_signed_length",
            "Content-Length: +0",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nContent-Length: +0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_a_listed_length",
            "Content-Length: 0, 40",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0, 40\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_an_unknown_coding",
            "Transfer-Encoding: xchunked",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_two_codings",
            "chunked, identity",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_a_space_before_the_colon",
            "Transfer-Encoding :",
            "POST /healthz HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: HOST\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_a_folded_header",
            "a folded line",
            "GET /healthz HTTP/1.1\r\nHost: HOST\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n\r\n",
        ),
        (
            "cannot_smuggle_by_an_endless_chunk_size",
            "a chunk of 2^64 bytes",
            "POST /e2b/sandboxes HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\nx",
        ),
        (
            "cannot_smuggle_a_zero_byte",
            "a zero byte in a header",
            "GET /healthz HTTP/1.1\r\nHost: HOST\r\nX-A: a\0b\r\n\r\n",
        ),
        (
            "cannot_smuggle_a_bare_return",
            "a return alone in a header",
            "GET /healthz HTTP/1.1\r\nHost: HOST\r\nX-A: a\rX-B: b\r\n\r\n",
        ),
        ("cannot_speak_another_protocol", "no HTTP at all", "\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n"),
    ];
    let made = cases
        .into_iter()
        .map(|(name, what, request)| Probe::new(name, smuggled, move |house| hides_nothing(house, what, request)));
    made.collect()
}

fn hosts() -> Vec<Probe> {
    let astray = "a request is judged for one host and answered for another";
    vec![
        Probe::new("cannot_name_two_hosts", astray, |house| {
            hides_nothing(house, "two Host headers", "GET /healthz HTTP/1.1\r\nHost: HOST\r\nHost: other\r\n\r\n")
        }),
        Probe::new("cannot_name_another_host_in_the_target", astray, |house| {
            hides_nothing(house, "another target", "GET http://other/healthz HTTP/1.1\r\nHost: HOST\r\n\r\n")
        }),
        Probe::new("cannot_hide_a_host_behind_a_user", astray, |house| {
            hides_nothing(house, "user@host", "GET /healthz HTTP/1.1\r\nHost: x@HOST\r\n\r\n")
        }),
        Probe::new(
            "cannot_say_to_be_another_server",
            "the check of the host is skipped, addresses are told",
            |house| {
                let said = [("cove-sent-on-by", "another 1 00"), ("cove-sent-on-by", "another")];
                each(said.map(|header| {
                    let path = format!("/api/sandboxes/{}", house.private);
                    refused("Cove-Sent-On-By of a client", house.send("GET", &path, &[header], ""))
                }))
            },
        ),
        Probe::new("cannot_rewrite_the_path_by_a_header", astray, |house| {
            each(["x-original-url", "x-rewrite-url", "x-forwarded-prefix"].map(|name| {
                match house.send("GET", "/healthz", &[(name, "/api/sandboxes")], "") {
                    Ok(answer) if answer.text().trim() == "ok" => held(format!("{name} is not heard")),
                    Ok(answer) => lost(format!("{name}: {}", answer.beginning())),
                    Err(error) => hung_up(name, &error),
                }
            }))
        }),
        Probe::new("cannot_rewrite_the_method_by_a_header", astray, |house| {
            let path = format!("/api/sandboxes/{}", house.open);
            let bearer = format!("Bearer {}", house.reader);
            let _asked =
                house.send("GET", &path, &[("x-http-method-override", "DELETE"), ("authorization", &bearer)], "");
            match house.ask(Some(&house.key), "GET", &path, &Value::Null) {
                Ok(answer) if answer.status == 200 => held("X-HTTP-Method-Override is not heard"),
                other => lost(format!("the sandbox is gone: {other:?}")),
            }
        }),
        Probe::new("cannot_use_the_server_as_a_proxy", "the server connects where a client says", |house| {
            hides_nothing(house, "CONNECT", "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n")
        }),
        Probe::new(
            "cannot_have_a_request_repeated",
            "a page reads the headers of its own requests, keys included",
            |house| refused("TRACE /", house.send("TRACE", "/", &[("authorization", "Bearer x")], "")),
        ),
        Probe::new(
            "cannot_call_the_api_from_any_page",
            "a page that somebody visits acts with what their browser holds",
            |house| {
                let origin = ("origin", "http://evil.example");
                // Cookies are what a browser adds by itself, so none may stand for a key: Daytona's API may be called
                // with credentials, because it looks at no cookie.
                let cookie = format!("cove_token={0}; token={0}; api_key={0}; authorization={0}", house.key);
                let apis = ["/api/sandboxes", "/daytona/api/sandbox", "/e2b/sandboxes"].map(|path| {
                    let answer = house.send("GET", path, &[origin, ("cookie", cookie.as_str())], "");
                    refused(&format!("GET {path} with cookies"), answer)
                });
                // A program inside may know its visitors by cookies.
                let preview = format!("/daytona/preview/{}/8000/page", house.open);
                let asked = [origin, ("access-control-request-method", "POST")];
                let preflights = ["/api/sandboxes", "/e2b/sandboxes", preview.as_str()].map(|path| {
                    match house.send("OPTIONS", path, &asked, "") {
                        Ok(answer) if answer.header("access-control-allow-credentials").is_some() => {
                            lost(format!("OPTIONS {path} allows credentials of any page"))
                        }
                        Ok(answer) => held(format!("OPTIONS {path}: {}, no credentials", answer.status)),
                        Err(error) => hung_up(&format!("OPTIONS {path}"), &error),
                    }
                });
                each(apis.into_iter().chain(preflights))
            },
        ),
        Probe::new("cannot_send_a_browsers_credentials_to_a_daemon", "as above, to a sandbox's daemons", |house| {
            let asked = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
            match house.at_port(&house.open, 49983, "OPTIONS", "/files", &asked, "") {
                Ok(answer) if answer.header("access-control-allow-credentials").is_some() => {
                    lost("credentials of any page are allowed")
                }
                Ok(answer) => held(format!("OPTIONS /files: {}, no credentials", answer.status)),
                Err(error) => hung_up("OPTIONS /files", &error),
            }
        }),
    ]
}

fn bombs() -> Vec<Probe> {
    let busy = "a few requests keep the server from everybody else";
    vec![
        Probe::new("cannot_send_an_endless_header", busy, |house| {
            quick(house, "2 MiB of one header", |house| {
                let long = "a".repeat(2 << 20);
                refused("2 MiB of one header", house.send("GET", "/healthz", &[("x-long", &long)], ""))
            })
        }),
        Probe::new("cannot_send_endless_headers", busy, |house| {
            quick(house, "20,000 headers", |house| {
                let many: Vec<(String, String)> = (0..20_000).map(|n| (format!("x-{n}"), "a".to_owned())).collect();
                let many: Vec<(&str, &str)> =
                    many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                refused("20,000 headers", house.send("GET", "/healthz", &many, ""))
            })
        }),
        Probe::new("cannot_send_an_endless_path", busy, |house| {
            quick(house, "2 MiB of path", |house| {
                refused("2 MiB of path", house.send("GET", &format!("/{}", "a".repeat(2 << 20)), &[], ""))
            })
        }),
        Probe::new("cannot_nest_a_body_without_end", busy, |house| {
            quick(house, "100,000 lists in lists", |house| {
                let body = format!("{{\"labels\": {}", "[".repeat(100_000));
                let bearer = format!("Bearer {}", house.stranger);
                refused(
                    "100,000 lists in lists",
                    house.send("POST", "/api/sandboxes", &[("authorization", &bearer)], &body),
                )
            })
        }),
        Probe::new("cannot_send_a_body_without_end", busy, |house| {
            quick(house, "17 MiB of body", |house| {
                let body = format!("{{\"name\": \"{}\"}}", "a".repeat(17 << 20));
                let bearer = format!("Bearer {}", house.stranger);
                refused("17 MiB of body", house.send("POST", "/api/sandboxes", &[("authorization", &bearer)], &body))
            })
        }),
        Probe::new("cannot_name_half_a_million_resolvers", busy, |house| {
            let resolvers = vec!["192.0.2.53"; 500_000];
            too_much(house, "500,000 resolvers", json!({"network": {"access": "open", "resolvers": resolvers}}))
        }),
        Probe::new("cannot_name_half_a_million_rules", busy, |house| {
            let deny = vec!["192.0.2.1"; 500_000];
            too_much(house, "500,000 rules", json!({"network": {"access": "open", "deny": deny}}))
        }),
        Probe::new("cannot_ask_for_a_thousand_labels", busy, |house| {
            quick(house, "900 labels in a query", |house| {
                let labels: Vec<String> = (0..900).map(|n| format!("label=l{n}%3Dv")).collect();
                let path = format!("/api/sandboxes?{}", labels.join("&"));
                refused("900 labels in a query", house.ask(Some(&house.stranger), "GET", &path, &Value::Null))
            })
        }),
        Probe::new("cannot_put_a_book_into_a_label", busy, |house| {
            too_much(house, "a label of 1 MiB", json!({"labels": {"a": "b".repeat(1 << 20)}}))
        }),
        Probe::new("cannot_ask_for_a_million_kinds_of_events", busy, |house| {
            quick(house, "1,000,000 kinds", |house| {
                let body = json!({"url": "http://203.0.113.1/", "kinds": vec!["a"; 1_000_000]});
                refused("1,000,000 kinds", house.ask(Some(&house.stranger), "POST", "/api/webhooks", &body))
            })
        }),
        Probe::new("cannot_kill_the_server_by_code", "one cell ends it for everybody", |house| {
            let doubling: String = (1..40).map(|n| format!("a{n} = a{} + a{},", n - 1, n - 1)).collect();
            let code = format!("enum E {{ a0 = 'xxxxxxxx', {doubling} }}");
            let body = json!({"session_id": house.session, "code": code, "language": "typescript"});
            // Whether it runs is the cell's own matter; that the server answers beside it and afterwards is what counts.
            let cell = wire::once(&house.address, request(house, &body).as_bytes());
            match house.send("GET", "/healthz", &[], "") {
                Ok(health) if health.status == 200 => {
                    held(format!("the server lives; the cell: {}", cell.map_or(0, |answer| answer.status)))
                }
                other => lost(format!("the server does not answer afterwards: {other:?}")),
            }
        }),
    ]
}

fn request(house: &House, body: &Value) -> String {
    let bearer = format!("Bearer {}", house.key);
    let headers = [("host", house.address.as_str()), ("connection", "close"), ("authorization", bearer.as_str())];
    wire::written("POST", "/api/execute", &headers, &body.to_string())
}
