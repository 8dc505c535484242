//! An S3 server of the test's own, with one bucket in a folder.

use std::path::PathBuf;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;

pub const BUCKET: &str = "archives";
const KEY: &str = "AKEXAMPLE";
const SECRET: &str = "a secret of the tests";

pub struct ObjectStore {
    endpoint: String,
    folder: TempDir,
    /// Ends with it.
    _runtime: tokio::runtime::Runtime,
}

impl ObjectStore {
    pub fn start() -> ObjectStore {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder.path()).expect("an S3 server"));
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    // A client that hangs up is none of our business.
                    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        ObjectStore { endpoint, folder, _runtime: runtime }
    }

    /// What `cove serve` needs to use it.
    pub fn environment(&self) -> Vec<(&'static str, &str)> {
        self.environment_with_secret(SECRET)
    }

    pub fn environment_with_secret<'a>(&'a self, secret: &'a str) -> Vec<(&'static str, &'a str)> {
        vec![
            ("COVE_ARCHIVE_URL", "s3://archives/cove"),
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ]
    }

    /// The archive of a sandbox, as the bucket keeps it.
    pub fn archive_of(&self, id: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(format!("cove/sandboxes/{id}.tar.zst"))
    }
}
