//! Sandboxes that sleep long: their files as one compressed tar in the object store, nothing on the machine.

use std::path::Path;
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::config::Archive;
use crate::sandbox::Sandbox;
use crate::{App, Error};

/// The folder that archives go to where no other place is configured.
pub fn folder(path: &Path) -> Result<Arc<dyn ObjectStore>, Error> {
    crate::app::make_private_directory(path)
        .map_err(|error| Error::internal(format!("make the archive folder {}: {error}", path.display())))?;
    let store = LocalFileSystem::new_with_prefix(path)
        .map_err(|error| Error::internal(format!("open the archive folder {}: {error}", path.display())))?;
    Ok(Arc::new(store))
}

/// Where archives and artifacts go: the configured store, else the folder.
pub fn open(config: &Archive, folder_path: &Path) -> Result<Arc<dyn ObjectStore>, Error> {
    let Some(url) = &config.url else { return folder(folder_path) };
    let wrong = |reason: String| Error::invalid("archive.url", reason);
    let Some(rest) = url.strip_prefix("s3://") else {
        return Err(wrong(format!("{url:?} does not begin with s3://")));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let mut builder = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    let store = builder.build().map_err(|error| wrong(error.to_string()))?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

fn key(sandbox: &Sandbox) -> Key {
    Key::from(format!("sandboxes/{}.tar", sandbox.id))
}

impl App {
    /// Files to the object store, then off the provider.
    pub(crate) async fn export(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let provider = self.provider(&sandbox.provider)?;
        let mut writer = object_store::buffered::BufWriter::new(Arc::clone(self.objects()), key(sandbox));
        provider.export(&sandbox.id, &mut writer).await?;
        tokio::io::AsyncWriteExt::shutdown(&mut writer)
            .await
            .map_err(|error| Error::internal(format!("write the archive of {}: {error}", sandbox.id)))?;
        provider.destroy(&sandbox.id).await?;
        Ok(())
    }

    /// Files back from the object store.
    pub(crate) async fn import(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let broken =
            |error: &dyn std::fmt::Display| Error::internal(format!("read the archive of {}: {error}", sandbox.id));
        let meta = self.objects().head(&key(sandbox)).await.map_err(|error| broken(&error))?;
        let mut reader = object_store::buffered::BufReader::new(Arc::clone(self.objects()), &meta);
        let provider = self.provider(&sandbox.provider)?;
        provider.import(&sandbox.spec()?, &mut reader).await?;
        Ok(())
    }

    pub(crate) async fn forget_archive(&self, sandbox: &Sandbox) -> Result<(), Error> {
        match self.objects().delete(&key(sandbox)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::internal(format!("remove the archive of {}: {error}", sandbox.id))),
        }
    }
}
