//! Exports that nobody reads to their end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use cove_testkit::server::KEY;
use cove_testkit::wait::{LIMIT, until};
use cove_testkit::{Random, TestServer};
use rustix::net::sockopt::set_socket_recv_buffer_size;

/// Far more than the buffers of a connection hold, and it does not get smaller when it is packed.
const BYTES: usize = 10 << 20;
/// As many as one organisation may read at one time.
const MOST: usize = 4;
const EXPORT: &str = "/api/templates/large/export";

fn make_large_template(server: &TestServer) {
    let root = server.data().with_file_name("root");
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("large"), Random::new(7).bytes(BYTES)).unwrap();
    let archive = root.with_file_name("root.tar");
    let packed = std::process::Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
    assert!(packed.unwrap().success());
    server.cove(["template", "build", "large", "--archive", archive.to_str().unwrap()]).finish().expect_success();
}

/// A client that asks for the archive, reads the beginning, and nothing more.
fn stalled(server: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!("GET {EXPORT} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {KEY}\r\n\r\n", server.address());
    stream.write_all(head.as_bytes()).unwrap();
    // Longer than the answer's head: the archive has begun.
    let mut begun = [0; 4096];
    stream.read_exact(&mut begun).unwrap();
    assert!(begun.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&begun));
    stream
}

#[test]
fn downloads_that_stall_keep_nobody_from_another() {
    let server = TestServer::start();
    make_large_template(&server);
    let mut stalled_ones: Vec<TcpStream> = (0..MOST).map(|_| stalled(&server)).collect();
    // An organisation's own maximum is told as one, and a reader that goes makes room.
    let refused = server.request("GET", EXPORT, None).expect_status(429);
    assert!(refused.text().contains("exports already"), "{}", refused.text());
    stalled_ones.pop();
    // Those that stall have their places, and none of them the server's turn to pack.
    until("the place of a reader that went away", LIMIT, || {
        let answer = server.request("GET", EXPORT, None);
        assert!(answer.status == 429 || answer.body.len() > BYTES, "{} bytes", answer.body.len());
        answer.status == 200
    });
}
