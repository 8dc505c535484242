//! What opens one file or one port without a key, and what of ours reaches a program inside.

use cove_control::door::daytona::sign_file;
use cove_control::door::e2b::files::signature::{Operation, sign};
use cove_probe::Outcome;
use serde_json::Value;

use super::house::{House, PORT, text};
use super::wire::Answer;
use super::{Probe, each, held, hung_up, lost, refused};

/// The ways to the program's port, by every door. `{}` is the sandbox.
const WAYS: [&str; 3] =
    ["/api/sandboxes/{}/ports/8000/proxy/page", "/daytona/preview/{}/8000/page", "/daytona/toolbox/{}/proxy/8000/page"];

pub fn probes() -> Vec<Probe> {
    let mut all = reaching_the_program();
    all.extend(cookies());
    all.extend(ports());
    all.extend(files());
    all
}

/// What the program heard of a request holds none of these.
fn hears_none(what: &str, answer: std::io::Result<Answer>, secrets: &[&str]) -> Outcome {
    match answer {
        Ok(answer) if answer.status == 200 => {
            let heard = answer.text();
            match secrets.iter().any(|secret| heard.contains(secret)) {
                true => lost(format!("{what}: the program heard it")),
                false if heard.starts_with("GET ") => held(format!("{what}: the program did not hear it")),
                false => lost(format!("{what}: an answer that is not the program's")),
            }
        }
        Ok(answer) => held(format!("{what}: {}", answer.status)),
        Err(error) => hung_up(what, &error),
    }
}

/// Sends a header to the program by every door, as its owner and to a port that is open to all.
fn sent(house: &House, name: &str, value: &str, secret: &str) -> Outcome {
    if !house.serves {
        return House::without_program();
    }
    let own = [(name, value)];
    let mut outcomes =
        vec![hears_none(&format!("{name} by host name"), house.at(&house.open, "GET", "/page", &own), &[secret])];
    for way in WAYS {
        // What lets the toolbox in stands in the query, so that the header is free.
        let query = if way.contains("toolbox") {
            format!("?DAYTONA_SANDBOX_AUTH_KEY={}", house.access_token)
        } else {
            String::new()
        };
        let id = if way.contains("toolbox") { &house.closed } else { &house.open };
        let path = format!("{}{query}", way.replace("{}", id));
        let secrets = [secret, house.access_token.as_str()];
        outcomes.push(hears_none(&format!("{name} to {way}"), house.send("GET", &path, &own, ""), &secrets));
    }
    each(outcomes)
}

fn reaching_the_program() -> Vec<Probe> {
    let meaning = "code in a sandbox acts with its visitor's key";
    vec![
        Probe::new("cannot_hand_a_key_to_a_program", meaning, |house| {
            each([
                sent(house, "authorization", &format!("Bearer {}", house.key), &house.key),
                sent(house, "authorization", &format!("bearer {}", house.key), &house.key),
                sent(house, "x-api-key", &house.key, &house.key),
            ])
        }),
        Probe::new("cannot_hand_a_strangers_key_to_a_program", meaning, |house| {
            sent(house, "x-api-key", &house.stranger, &house.stranger)
        }),
        Probe::new("cannot_hand_a_revoked_key_to_a_program", meaning, |house| {
            sent(house, "x-api-key", &house.revoked, &house.revoked)
        }),
        Probe::new("cannot_hand_a_key_as_a_password_to_a_program", meaning, |house| {
            use base64::Engine as _;
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("user:{}", house.key));
            sent(house, "authorization", &format!("Basic {pair}"), &pair)
        }),
        Probe::new("cannot_hand_a_key_in_an_odd_header_to_a_program", meaning, |house| {
            sent(house, "x-anything", &format!("k={}", house.key), &house.key)
        }),
        Probe::new("cannot_hand_a_token_to_a_program", meaning, |house| {
            let names =
                ["x-cove-traffic-token", "e2b-traffic-access-token", "x-access-token", "x-daytona-preview-token"];
            each(names.map(|name| sent(house, name, &house.traffic_token, &house.traffic_token)))
        }),
        Probe::new("cannot_hand_a_cookie_of_ours_to_a_program", meaning, |house| {
            each([
                sent(house, "cookie", &format!("a=1; cove_token={}", house.traffic_token), &house.traffic_token),
                sent(house, "cookie", "__Host-cove_token=secret-of-a-link", "secret-of-a-link"),
            ])
        }),
        Probe::new("cannot_hand_a_link_to_a_program_by_its_referer", meaning, |house| {
            sent(house, "referer", "http://h/?cove_token=secret-of-a-link", "secret-of-a-link")
        }),
        Probe::new("cannot_hand_a_key_in_a_query_to_a_program", meaning, |house| {
            if !house.serves {
                return House::without_program();
            }
            let query = format!("/page?a=1&api_key={}&cove%5Ftoken=x&DAYTONA_SANDBOX_AUTH_KEY=y", house.key);
            let secrets = [house.key.as_str(), "cove%5Ftoken", "DAYTONA_SANDBOX_AUTH_KEY"];
            hears_none("a query with ours in it", house.at(&house.open, "GET", &query, &[]), &secrets)
        }),
        Probe::new("cannot_reach_a_port_with_a_key_for_looking", "who may only look acts", |house| {
            each(WAYS.map(|way| {
                let path = way.replace("{}", &house.closed);
                refused(&path, house.ask(Some(&house.reader), "GET", &path, &Value::Null))
            }))
        }),
        Probe::new(
            "cannot_leave_a_preview_by_its_path",
            "a preview's path leads to another route of the server",
            |house| {
                let ups = [
                    "../../../../../keys",
                    "..%2f..%2f..%2f..%2fkeys",
                    "%2e%2e/%2e%2e/%2e%2e/%2e%2e/keys",
                    "..\\..\\keys",
                ];
                each(ups.map(|up| {
                    let path = format!("/api/sandboxes/{}/ports/{PORT}/proxy/{up}", house.open);
                    match house.send("GET", &path, &[], "") {
                        Ok(answer) if answer.text().contains("\"scope\"") => lost(format!("{up}: keys are listed")),
                        Ok(answer) => held(format!("{up}: {}", answer.status)),
                        Err(error) => hung_up(up, &error),
                    }
                }))
            },
        ),
    ]
}

/// The cookies that an answer sets are for nobody but the sandbox.
fn sets_none(what: &str, answer: std::io::Result<Answer>) -> Outcome {
    match answer {
        Ok(answer) => {
            let wrong = answer.all("set-cookie").find(|cookie| {
                let cookie = cookie.to_ascii_lowercase();
                cookie.contains("domain") || cookie.trim_start().starts_with("cove_token") || cookie.contains("evil")
            });
            match wrong {
                Some(cookie) => lost(format!("{what} sets {cookie}")),
                None => held(format!("{what}: {}, no such cookie", answer.status)),
            }
        }
        Err(error) => hung_up(what, &error),
    }
}

fn cookies() -> Vec<Probe> {
    let planted = "a sandbox plants cookies at the API or at another sandbox";
    vec![
        Probe::new("cannot_set_a_cookie_for_the_whole_domain", planted, |house| {
            if !house.serves {
                return House::without_program();
            }
            let wish =
                [("x-set-cookie", "a=1; Domain=localhost"), ("x-set-cookie", "b=2;\tDOMAIN\t=.localhost; Path=/")];
            let by_path = WAYS[..2]
                .iter()
                .map(|way| sets_none(way, house.send("GET", &way.replace("{}", &house.open), &wish, "")));
            each(
                by_path
                    .chain([sets_none("by host name", house.at(&house.open, "GET", "/", &wish))])
                    .collect::<Vec<_>>(),
            )
        }),
        Probe::new("cannot_set_a_cookie_of_ours", planted, |house| {
            if !house.serves {
                return House::without_program();
            }
            let wish = [
                ("x-set-cookie", "cove_token=evil; Path=/"),
                ("x-set-cookie", "__Host-cove_token=evil; Secure; Path=/"),
            ];
            let nameless = [("x-set-cookie", "=cove_token=evil"), ("x-set-cookie", "__Secure-cove_token=evil; Secure")];
            each([wish, nameless].map(|wish| sets_none("by host name", house.at(&house.open, "GET", "/", &wish))))
        }),
        Probe::new("cannot_write_a_cookies_attributes_by_a_link", planted, |house| {
            let tokens =
                ["a;Domain=localhost", "a%3BDomain%3Dlocalhost", "a%0d%0aSet-Cookie:%20evil=1", "a;%20Path=/api;evil"];
            let by_name = tokens.map(|token| {
                let page = [("accept", "text/html")];
                sets_none(token, house.at(&house.closed, "GET", &format!("/?cove_token={token}"), &page))
            });
            let by_path = tokens.map(|token| {
                let path = format!("/api/sandboxes/{}/ports/{PORT}/proxy/?cove_token={token}", house.open);
                sets_none(token, house.send("GET", &path, &[], ""))
            });
            each(by_name.into_iter().chain(by_path))
        }),
        Probe::new(
            "cannot_use_a_visitors_cookie_from_another_page",
            "a sandbox's page acts in another with its visitor's rights",
            |house| {
                let Some(cookie) = visit(house).and_then(|answer| cookie(&answer)) else {
                    return lost("the owner's own link does not work");
                };
                let sender = format!("http://{PORT}-{}.localhost", house.open);
                let kept = ("cookie", cookie.as_str());
                let cases: [&[(&str, &str)]; 4] = [
                    &[kept, ("origin", &sender)],
                    &[kept, ("origin", "null")],
                    &[kept, ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
                    &[kept, ("origin", "http://evil.example"), ("connection", "upgrade"), ("upgrade", "websocket")],
                ];
                each(cases.map(|headers| {
                    refused(&format!("{:?}", &headers[1..]), house.at(&house.closed, "GET", "/", headers))
                }))
            },
        ),
        Probe::new("cannot_send_a_visitor_away_by_a_link", "a link to a sandbox leads to another site", |house| {
            let Some(token) = link_token(house) else { return lost("the owner gets no link") };
            each(["//evil.example/", "/\\evil.example/", "///evil.example"].map(|path| {
                let page = [("accept", "text/html")];
                let answer = house.at(&house.closed, "GET", &format!("{path}?cove_token={token}"), &page);
                match answer {
                    Ok(answer) => match answer.header("location") {
                        Some(place) if place.starts_with("//") || place.starts_with("/\\") || place.contains("://") => {
                            lost(format!("{path} leads to {place}"))
                        }
                        _ => held(format!("{path}: {}", answer.status)),
                    },
                    Err(error) => hung_up(path, &error),
                }
            }))
        }),
    ]
}

/// The owner's own link to the port that asks for one.
fn link_token(house: &House) -> Option<String> {
    let path = format!("/api/sandboxes/{}/ports/{PORT}/link", house.closed);
    let link = house.ask(Some(&house.key), "GET", &path, &Value::Null).ok()?.json();
    Some(text(&link, "host_url").split_once("cove_token=")?.1.to_owned())
}

fn visit(house: &House) -> Option<Answer> {
    let path = format!("/?cove_token={}", link_token(house)?);
    house.at(&house.closed, "GET", &path, &[("accept", "text/html")]).ok()
}

fn cookie(answer: &Answer) -> Option<String> {
    Some(answer.header("set-cookie")?.split(';').next()?.to_owned())
}

fn ports() -> Vec<Probe> {
    let forged = "anybody opens a port that asks for a token";
    vec![
        Probe::new("cannot_forge_a_link_to_a_port", forged, |house| {
            let Some(token) = link_token(house) else { return lost("the owner gets no link") };
            let (end, code) = token.split_once('.').unwrap_or_default();
            let later = end.parse::<i64>().unwrap_or_default() + 1_000_000;
            let tokens = [
                String::new(),
                "x".to_owned(),
                format!("{end}."),
                format!("{end}.{}", "0".repeat(code.len())),
                format!("{later}.{code}"),
                format!("0.{code}"),
                format!("{end}.{}", code.to_uppercase()),
                format!("{token}0"),
            ];
            each(tokens.iter().flat_map(|token| {
                let query = format!("?cove_token={token}");
                let path = format!("/api/sandboxes/{}/ports/{PORT}/proxy/{query}", house.closed);
                [
                    refused(&query, house.at(&house.closed, "GET", &format!("/{query}"), &[])),
                    refused(&query, house.send("GET", &path, &[], "")),
                ]
            }))
        }),
        Probe::new("cannot_use_a_link_for_another_port_or_sandbox", forged, |house| {
            let Some(token) = link_token(house) else { return lost("the owner gets no link") };
            let path = format!("/?cove_token={token}");
            each([
                refused("another port", house.at_port(&house.closed, 8001, "GET", &path, &[], "")),
                refused("another sandbox", house.at(&house.private, "GET", &path, &[])),
                refused(
                    "a daemon",
                    house.at_port(
                        &house.closed,
                        49983,
                        "GET",
                        &format!("/files?path=/etc/passwd&cove_token={token}"),
                        &[],
                        "",
                    ),
                ),
            ])
        }),
        Probe::new("cannot_use_two_tokens_at_once", forged, |house| {
            let Some(token) = link_token(house) else { return lost("the owner gets no link") };
            let path = format!("/?cove_token=x&cove%5Ftoken={token}");
            refused("two tokens", house.at(&house.closed, "GET", &path, &[]))
        }),
        Probe::new("cannot_forge_a_signed_preview", forged, |house| {
            each(["", "x", "00000000000000000000000000000000", "..", "%00"].map(|token| {
                let path = format!("/daytona/preview/{}/{PORT}~{token}/", house.closed);
                refused(&path, house.send("GET", &path, &[], ""))
            }))
        }),
        Probe::new("cannot_use_a_signed_preview_for_another_port", forged, |house| {
            let path = format!("/daytona/api/sandbox/{}/ports/{PORT}/signed-preview-url", house.closed);
            let made = house.ask(Some(&house.key), "GET", &path, &Value::Null);
            let Some(token) = made.ok().map(|answer| text(&answer.json(), "token")).filter(|token| !token.is_empty())
            else {
                return lost("the owner gets no link");
            };
            each([
                refused(
                    "another port",
                    house.send("GET", &format!("/daytona/preview/{}/8001~{token}/", house.closed), &[], ""),
                ),
                refused(
                    "another sandbox",
                    house.send("GET", &format!("/daytona/preview/{}/{PORT}~{token}/", house.private), &[], ""),
                ),
            ])
        }),
        Probe::new("cannot_reach_a_private_port_without_a_token", forged, |house| {
            let by_path = WAYS.map(|way| {
                let path = way.replace("{}", &house.closed);
                refused(&path, house.send("GET", &path, &[], ""))
            });
            each(by_path.into_iter().chain([refused("by host name", house.at(&house.closed, "GET", "/", &[]))]))
        }),
        Probe::new("cannot_reach_a_private_port_by_an_upgrade", forged, |house| {
            let upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
            let upgrade = [&upgrade[..], &[("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")]].concat();
            each([
                refused("by host name", house.at(&house.closed, "GET", "/", &upgrade)),
                refused(
                    "h2c",
                    house.at(
                        &house.closed,
                        "GET",
                        "/",
                        &[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")],
                    ),
                ),
            ])
        }),
        Probe::new("cannot_run_code_in_a_public_sandbox", "who knows an id runs code", |house| {
            let body = r#"{"code": "1"}"#;
            each(
                ["/execute", "/execute/", "//execute", "/%65xecute", "/execute?x"]
                    .map(|path| refused(path, house.at_port(&house.open, 49999, "POST", path, &[], body))),
            )
        }),
        Probe::new(
            "cannot_touch_the_contexts_of_a_public_sandbox",
            "who knows an id destroys its owner's state",
            |house| {
                let calls = [
                    ("GET", "/contexts"),
                    ("POST", "/contexts"),
                    ("POST", "/contexts/python/restart"),
                    ("DELETE", "/contexts/python"),
                ];
                each(
                    calls.map(|(method, path)| {
                        refused(path, house.at_port(&house.open, 49999, method, path, &[], "{}"))
                    }),
                )
            },
        ),
    ]
}

fn files() -> Vec<Probe> {
    let opened = "a link to one file opens others";
    vec![
        Probe::new("cannot_open_another_file_with_a_daytona_link", opened, |house| {
            let path = format!("/daytona/api/sandbox/{}/signing-key", house.closed);
            let Ok(answer) = house.ask(Some(&house.key), "GET", &path, &Value::Null) else {
                return lost("no signing key");
            };
            let key = answer.json().as_str().unwrap_or_default().to_owned();
            let base = format!("/daytona/toolbox/{}/files/download", house.closed);
            let signature = sign_file(&key, "GET", "/etc/hostname", "0");
            let tail = format!("expires=0&signature={signature}");
            let own = house.send("GET", &format!("{base}?path=/etc/hostname&{tail}"), &[], "");
            if !own.is_ok_and(|answer| answer.status == 200) {
                return lost("the owner's own link does not work");
            }
            let queries = [
                "path[]=/etc/hostname&path=/etc/passwd",
                "path=/etc/passwd&path[]=/etc/hostname",
                "path=/etc/hostname&path=/etc/passwd",
                "path%5B%5D=/etc/hostname&path=/etc/passwd",
                "path=/etc/passwd",
                "path=/etc/hostname/../passwd",
                "path=/etc/hostname%00/etc/passwd",
                "",
            ];
            each(queries.map(|query| refused(query, house.send("GET", &format!("{base}?{query}&{tail}"), &[], ""))))
        }),
        Probe::new("cannot_overwrite_a_file_with_a_daytona_link", opened, |house| {
            let path = format!("/daytona/api/sandbox/{}/signing-key", house.closed);
            let Ok(answer) = house.ask(Some(&house.key), "GET", &path, &Value::Null) else {
                return lost("no signing key");
            };
            let key = answer.json().as_str().unwrap_or_default().to_owned();
            let write = sign_file(&key, "POST", "/tmp/mine", "0");
            let read = sign_file(&key, "GET", "/tmp/mine", "0");
            let calls = ["upload", "upload-v2"].into_iter().flat_map(|call| {
                let base = format!("/daytona/toolbox/{}/files/{call}", house.closed);
                [
                    format!("{base}?path[]=/tmp/mine&path=/tmp/other&expires=0&signature={write}"),
                    format!("{base}?path=/tmp/other&expires=0&signature={write}"),
                    format!("{base}?path=/tmp/mine&expires=0&signature={read}"),
                    format!("{base}?path=/tmp/mine&expires=1&signature={write}"),
                ]
            });
            each(calls.map(|path| refused("an upload", house.send("POST", &path, &[], "x"))).collect::<Vec<_>>())
        }),
        Probe::new("cannot_forge_a_daytona_link", opened, |house| {
            let path = format!("/daytona/toolbox/{}/files/download?path=/etc/passwd", house.closed);
            let forged = sign_file("", "GET", "/etc/passwd", "0");
            each([
                refused("no signature", house.send("GET", &path, &[], "")),
                refused(
                    "a key of nothing",
                    house.send("GET", &format!("{path}&expires=0&signature={forged}"), &[], ""),
                ),
                refused("no code", house.send("GET", &format!("{path}&expires=0&signature=v1_"), &[], "")),
            ])
        }),
        Probe::new("cannot_open_another_file_with_an_e2b_link", opened, |house| {
            let read = |path: &str, expires| encoded(&sign(path, Operation::Read, "", &house.access_token, expires));
            let (good, old) = (read("/etc/hostname", None), read("/etc/passwd", Some("1")));
            let queries = [
                format!("path=/etc/hostname&path=/etc/passwd&signature={good}"),
                format!("path=/etc/passwd&signature={good}"),
                format!("%70ath=/etc/hostname&path=/etc/passwd&signature={good}"),
                format!("path=/etc/hostname&username=root&signature={good}"),
                format!("path=/etc/passwd&signature={old}&signature_expiration=1"),
                format!("path=/etc/passwd&signature={old}"),
            ];
            each(queries.iter().flat_map(|query| {
                let path = format!("/files?{query}");
                [
                    refused(query, house.at_port(&house.closed, 49983, "GET", &path, &[], "")),
                    refused(query, house.send("GET", &path, &[], "")),
                ]
            }))
        }),
        Probe::new("cannot_write_with_an_e2b_link_for_reading", opened, |house| {
            let read = encoded(&sign("/tmp/x:write:y", Operation::Read, "", &house.access_token, None));
            let binary = [("content-type", "application/octet-stream")];
            let plain = format!("/files?path=/tmp/x%3Awrite%3Ay&signature={read}");
            let twisted = format!("/files?path=/tmp/x&username=y%3Aread%3A&signature={read}");
            each(
                [plain, twisted]
                    .map(|path| refused("an upload", house.at_port(&house.closed, 49983, "POST", &path, &binary, "x"))),
            )
        }),
        Probe::new("cannot_forge_an_e2b_link", opened, |house| {
            let empty = encoded(&sign("/etc/passwd", Operation::Read, "", "", None));
            each(["", "&signature=", "&signature=v1_", &format!("&signature={empty}")].map(|tail| {
                refused(
                    tail,
                    house.at_port(&house.closed, 49983, "GET", &format!("/files?path=/etc/passwd{tail}"), &[], ""),
                )
            }))
        }),
        Probe::new(
            "cannot_read_the_servers_files_by_a_path",
            "files of the host are read through a file call",
            |house| {
                let up = "../../../../../../../../../..";
                let database = &house.database;
                let paths = [format!("{up}{database}"), database.clone(), format!("/proc/1/root{database}")];
                each(paths.iter().map(|path| {
                    let path = format!("/api/sandboxes/{}/files/content?path={path}", house.closed);
                    match house.ask(Some(&house.key), "GET", &path, &Value::Null) {
                        Ok(answer) if answer.body.starts_with(b"SQLite") => {
                            lost(format!("{path} is the server's database"))
                        }
                        Ok(answer) => held(format!("{path}: {}", answer.status)),
                        Err(error) => hung_up(&path, &error),
                    }
                }))
            },
        ),
    ]
}

fn encoded(signature: &str) -> String {
    signature.replace('+', "%2B").replace('/', "%2F")
}
