//! `POST /files/compose`: several files become one, in order; the pieces are gone afterwards.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use cove_protocol::Request as Ask;
use cove_protocol::file::WriteMode;
use http::StatusCode;
use serde::Deserialize;

use super::super::envd::{Envd, ROOT, parent};
use super::super::error::plain;
use super::super::filesystem::{entry, follow, give, lstat, make_directories};
use super::Refused;
use crate::border;
use crate::door::size;
use crate::guest::Item;

#[derive(Deserialize)]
struct Compose {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

pub async fn answer(envd: &Envd, body: Body) -> Response {
    let request = match size::whole(body, border::MESSAGE).await {
        Ok(bytes) => border::read::<Compose>(bytes).await.map_err(|refused| refused.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match request {
        Ok(request) => compose(envd, request).await.unwrap_or_else(|refused| refused.answer(envd)),
        Err(error) => plain(StatusCode::BAD_REQUEST, &format!("malformed request: {error}")),
    }
}

async fn compose(envd: &Envd, request: Compose) -> Result<Response, Refused> {
    let user = request.username.as_deref().filter(|name| !name.is_empty());
    if request.source_paths.is_empty() {
        return Err(Refused::bad("source_paths is empty"));
    }
    let destination = envd.resolve(user, &request.destination).await?;
    let mut sources = Vec::with_capacity(request.source_paths.len());
    for path in &request.source_paths {
        let path = envd.resolve(user, path).await?;
        if follow(envd, &path).await?.is_none() {
            return Err(Refused::With(StatusCode::NOT_FOUND, format!("path '{path}' does not exist")));
        }
        sources.push(path);
    }
    make_directories(envd, user, parent(&destination)).await?;
    let write = Ask::Write {
        path: destination.clone(),
        user: Some(ROOT.into()),
        how: WriteMode::Replace,
        mode: None,
        parents: false,
    };
    let mut whole = envd.guest.send(&write).await?;
    for path in &sources {
        let read = Ask::Read { path: path.clone(), user: Some(ROOT.into()), offset: 0, length: None };
        let (_, mut piece) = envd.guest.open(&read).await?;
        while let Some(item) = piece.from.next().await? {
            if let Item::Data(bytes) = item {
                whole.to.data(&bytes).await?;
            }
        }
    }
    whole.to.end().await?;
    whole.reply().await?;
    give(envd, user, &destination).await?;
    for path in sources.into_iter().filter(|path| *path != destination) {
        envd.guest.call(&Ask::Remove { path, user: Some(ROOT.into()), recursive: false }).await?;
    }
    let made = lstat(envd, &destination).await?;
    let made = made.ok_or_else(|| Refused::bad(format!("path '{destination}' does not exist")))?;
    Ok(axum::Json(entry::describe(envd, made).await?).into_response())
}
