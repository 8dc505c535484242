//! Notes of templates that the database knows nothing of, as rows: an earlier version built them beside the server, or the
//! layers and notes are another data directory's that this one shares.
//!
//! Their layers get rows, so that the sandboxes that stand on them are counted, and the template a build with an id that its
//! sandboxes remember.

use sha2::{Digest as _, Sha256};

use super::record::{Kind, Record, Visibility};
use super::{DEFAULT_TAG, Template};
use crate::build::{Build, Defaults, Kind as BuildKind, Origin, State};
use crate::image::{LayerKind, NewLayer, User};
use crate::provider::LayerId;
use crate::store::templates::Beside;
use crate::{App, Error, random};

impl App {
    /// Gives a built-in template the build that its note tells of; its packages are for this version of Python.
    pub(super) async fn adopt_note(&self, template: &mut Template, python: String) -> Result<(), Error> {
        let id = template.build.clone().unwrap_or_else(|| build_of(template));
        template.build = Some(id.clone());
        template.provider = Some(self.default_provider().to_owned());
        if self.builds().is_adopted(&id) {
            return Ok(());
        }
        if self.store().build(&id).await?.is_none() {
            self.write_note(template, &id, python).await?;
        }
        self.builds().note_adopted(&id);
        Ok(())
    }

    async fn write_note(&self, template: &Template, id: &str, python: String) -> Result<(), Error> {
        let now = self.now();
        self.adopt_layers(&template.image.root.over).await?;
        let record = Record {
            id: template.id.clone(),
            organisation: String::new(),
            kind: Kind::Built,
            names: std::iter::once(template.name.clone()).chain(template.aliases.clone()).collect(),
            visibility: Visibility::Public,
            description: template.description.clone(),
            source_sandbox: None,
            inactive: false,
            door: serde_json::Value::Null,
            created_at: now,
            updated_at: now,
            deleted_at: None,
        };
        // Where it is there, or another server writes it at this moment, that one counts.
        self.store().insert_template(&record, None, Beside::default()).await?;
        let earlier = self.store().builds_of_template(&record.id, None, 1000).await?;
        let mut build = Build {
            id: id.to_owned(),
            template: record.id.clone(),
            organisation: String::new(),
            kind: BuildKind::Packages,
            state: State::Building,
            server: self.server().to_owned(),
            provider: self.default_provider().to_owned(),
            tags: vec![DEFAULT_TAG.to_owned()],
            image: template.image.clone(),
            delta: None,
            defaults: Defaults {
                env: template.env.clone(),
                user: template.user.clone(),
                cwd: template.cwd.clone(),
                start: template.start.clone(),
                ready: template.ready.clone(),
                limits: Some(template.limits),
                isolation: template.isolation,
                interpreter: template.interpreter,
                python,
            },
            source_sandbox: None,
            parent_build: None,
            origin: Origin::Asked,
            note: Some(template.description.clone()),
            bytes: 0,
            failure: None,
            created_at: now,
            started_at: Some(now),
            finished_at: Some(now),
            last_used_at: None,
            generation: 0,
        };
        self.store().insert_build(&build, Beside::default()).await?;
        build.state = State::Ready;
        let finished = self.store().finish_build(&mut build, now.as_millisecond(), Beside::default()).await?;
        if finished.is_none() {
            self.store().remove_build(id).await?;
            return Err(Error::exhausted(format!(
                "the layers of template {} are being removed; try again",
                record.title()
            )));
        }
        let elsewhere = |other: &Build| other.server != self.server();
        for other in earlier.items.into_iter().filter(|other| other.id != id && !elsewhere(other)) {
            self.store().remove_build(&other.id).await?;
        }
        tracing::info!(template = template.name, build = id, "took over a template that was built beside the server");
        Ok(())
    }

    /// Rows for layers that providers have and that the store does not know.
    async fn adopt_layers(&self, layers: &[LayerId]) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        for layer in layers {
            let provider = self.default_provider();
            let new =
                NewLayer { id: *layer, kind: LayerKind::Packages, organisation: None, server: self.server(), provider };
            let found = self.provider(provider)?.layers().layer(*layer).await.ok().flatten();
            let (bytes, files) = found.map_or((0, 0), |info| (info.bytes, info.files));
            self.store().adopt_layer(new, bytes, files, now).await?;
        }
        Ok(())
    }

    /// Rows from before layers were counted: their sandboxes need what they stand on. Once for each server.
    pub(crate) async fn adopt_old_sandboxes(&self) -> Result<(), Error> {
        if self.store().layers_are_counted(self.server()).await? {
            return Ok(());
        }
        for sandbox in self.store().sandboxes_of_server(self.server()).await? {
            let layers = &sandbox.image.root.over;
            if layers.is_empty() {
                continue;
            }
            self.adopt_layers(layers).await?;
            self.store().add_uses(User::Sandbox(sandbox.id.as_str()), layers).await?;
        }
        self.store().note_layers_counted(self.server()).await
    }
}

/// The same for the same note, whichever server reads it.
fn build_of(template: &Template) -> String {
    let mut hash = Sha256::new();
    hash.update(template.name.as_bytes());
    for layer in &template.image.root.over {
        hash.update(layer.as_bytes());
    }
    hash.update(template.built_at.map(|at| at.to_string()).unwrap_or_default());
    let digest: [u8; 32] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    random::uuid_from(bytes)
}
