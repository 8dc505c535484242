//! Where build contexts are sent: as much of S3 as the SDKs speak, below our own server.
//!
//! ```text
//!   GET /object-storage/push-access  with an API key ──▶ temporary credentials          [credentials]
//!   HEAD, GET ?list-type=2           is it there?        signed with them               [signature]
//!   PUT  /{bucket}/{organisation}/{md5}/context.tar      in one piece                   [payload]
//!   POST ?uploads · PUT ?partNumber · POST ?uploadId     in several                     [parts]
//!                                                         └──▶ App::put_build_file
//! ```
//!
//! The credentials open one organisation's contexts, and only to put them there: nothing can be read back. They are good
//! no longer than the key that asked for them.

mod credentials;
mod parts;
mod payload;
mod signature;
mod trouble;

use axum::Json;
use axum::body::Body;
use axum::extract::{OriginalUri, Path, Request, State};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio_util::io::StreamReader;

use self::credentials::Grant;
use self::parts::{PART_MAX, Uploads};
use self::payload::Payload;
use self::trouble::{Trouble, escaped};
use super::Door;
use super::admit::Authenticated;
use super::origin::Origin;
use super::problem::Answer;
use super::query::Pairs;
use crate::clock::Timestamp;
use crate::door::known::{parameters, unknown_parameter};
use crate::door::table::{Needs, Table};
use crate::door::{parts as request_parts, size};
use crate::{App, Caller, Error, right};

/// The one there is.
const BUCKET: &str = "build-contexts";
/// What S3 takes for a region where nobody says one: SDKs before 0.205 sign for this whatever they are told.
const REGION: &str = "us-east-1";
/// The name of every context.
const FILE: &str = "context.tar";
/// Bytes of a list of parts.
const LIST_MAX: usize = 1 << 20;

/// What a query may have. Clients say more about a list than is heeded: one context is all that it can hold.
const KNOWN: [&str; 12] = [
    "continuation-token",
    "delimiter",
    "encoding-type",
    "fetch-owner",
    "list-type",
    "max-keys",
    "partNumber",
    "prefix",
    "start-after",
    "uploadId",
    "uploads",
    "x-id",
];

type Reply = Result<Response, Trouble>;

/// Contexts on their way in.
#[derive(Clone)]
pub struct Dock {
    uploads: Uploads,
}

impl Dock {
    pub fn new(app: &App) -> Dock {
        Dock { uploads: Uploads::new(app.clone()) }
    }
}

pub fn table() -> Table<Door> {
    let signed = Needs::SignedUpload;
    Table::new()
        .get("/{bucket}", signed, list)
        .get("/{bucket}/", signed, list)
        .get("/{bucket}/{*path}", signed, look)
        .put("/{bucket}/{*path}", signed, put)
        .post("/{bucket}/{*path}", signed, several)
        .delete("/{bucket}/{*path}", signed, abort)
}

pub async fn push_access(
    State(door): State<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
) -> Answer<Json<Value>> {
    let grant = Grant::to(&caller, door.app.now());
    let keys = grant.keys(credentials::secret(&door.app));
    Ok(Json(json!({
        "accessKey": keys.access,
        "secret": keys.secret,
        "sessionToken": keys.token,
        "storageUrl": origin.storage(),
        "organizationId": caller.organisation,
        "bucket": BUCKET,
        "region": REGION,
    })))
}

/// A request whose signature was checked.
struct Signed {
    caller: Caller,
    pairs: Pairs,
    payload: Payload,
    body: Body,
}

/// Checks who sends a request before anything else of it is looked at.
async fn signed(door: &Door, bucket: &str, request: Request) -> Result<Signed, Trouble> {
    let app = &door.app;
    let (head, body) = request.into_parts();
    let uri = head.extensions.get::<OriginalUri>().map_or(&head.uri, |OriginalUri(uri)| uri);
    request_parts::check(uri, &head.headers).map_err(Error::from)?;
    let claim = signature::read(&head.headers)?;
    let grant = Grant::read(claim.access_key).ok_or_else(Trouble::unknown_key)?;
    let keys = grant.keys(credentials::secret(app));
    claim.check(&keys, &head.method, uri, &head.headers, app.now())?;
    if grant.end <= app.now().as_second() {
        return Err(Trouble::denied("ExpiredToken", "the credentials have expired: ask for others"));
    }
    let caller = holder(app, &grant).await?;
    if bucket != BUCKET {
        return Err(Trouble::not_found("NoSuchBucket", format!("there is the bucket {BUCKET} alone")));
    }
    let query = uri.query().unwrap_or_default();
    if let Some(unknown) = parameters(query).into_iter().find(|name| !KNOWN.contains(&name.as_str())) {
        return Err(Trouble::bad("InvalidArgument", unknown_parameter(&unknown, &KNOWN)));
    }
    let payload = Payload::announced(claim.payload)?;
    Ok(Signed { caller, pairs: Pairs::parse(query), payload, body })
}

/// Whoever holds the key behind the credentials, if it is still one.
async fn holder(app: &App, grant: &Grant) -> Result<Caller, Trouble> {
    let keys = app.store().keys(&grant.organisation).await?;
    let key = keys.into_iter().find(|key| key.id == grant.key).ok_or_else(Trouble::unknown_key)?;
    if key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= app.now()) {
        return Err(Trouble::unknown_key());
    }
    let end = Timestamp::from_second(grant.end).map_err(|_| Trouble::unknown_key())?;
    right::hold_key(&key.id, &key.organisation, Some(key.expires_at.map_or(end, |own| own.min(end))))?;
    let caller = grant.caller();
    app.admit(&caller).await?;
    Ok(caller)
}

/// The hash in `organisation/hash/context.tar`, of the caller's own.
fn own_hash<'a>(caller: &Caller, key: &'a str) -> Result<&'a str, Trouble> {
    let mut words = key.split('/');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(organisation), Some(hash), Some(FILE), None) if organisation == caller.organisation => Ok(hash),
        // Another's is not there, for whoever asks.
        (Some(_), Some(_), Some(FILE), None) => Err(no_such_key(key)),
        _ => Err(Trouble::denied("AccessDenied", format!("a context is {}/HASH/{FILE}", caller.organisation))),
    }
}

fn no_such_key(key: &str) -> Trouble {
    Trouble::not_found("NoSuchKey", format!("there is no {key}"))
}

fn xml(text: String) -> Response {
    let text = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{text}");
    ([(header::CONTENT_TYPE, "application/xml")], text).into_response()
}

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// Whether a context is there, asked as for a list of what begins with its name.
async fn list(State(door): State<Door>, Path(bucket): Path<String>, request: Request) -> Reply {
    let Signed { caller, pairs, .. } = signed(&door, &bucket, request).await?;
    if pairs.one("list-type") != Some("2") {
        return Err(Trouble::bad("InvalidArgument", "a list is asked for with list-type=2"));
    }
    let prefix = pairs.one("prefix").unwrap_or_default();
    let key =
        if prefix.ends_with(FILE) { prefix.to_owned() } else { format!("{}/{FILE}", prefix.trim_end_matches('/')) };
    // What names no context has none below it.
    let is_there = match own_hash(&caller, &key) {
        Ok(hash) => door.app.has_build_file(&caller, hash).await?,
        Err(_) => false,
    };
    let contents = if is_there {
        format!(
            "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>0</Size>\
             <StorageClass>STANDARD</StorageClass></Contents>",
            escaped(&key),
            door.app.now(),
            etag(key.as_bytes())
        )
    } else {
        String::new()
    };
    Ok(xml(format!(
        "<ListBucketResult xmlns=\"{NAMESPACE}\"><Name>{BUCKET}</Name><Prefix>{}</Prefix><KeyCount>{}</KeyCount>\
         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>",
        escaped(prefix),
        u8::from(is_there)
    )))
}

/// Whether a context is there; what it holds is for nobody to read.
async fn look(State(door): State<Door>, Path((bucket, key)): Path<(String, String)>, request: Request) -> Reply {
    let method = request.method().clone();
    let Signed { caller, .. } = signed(&door, &bucket, request).await?;
    let hash = own_hash(&caller, &key)?;
    if method != Method::HEAD {
        return Err(Trouble::denied(
            "AccessDenied",
            "these credentials are for putting contexts here, not for reading",
        ));
    }
    if !door.app.has_build_file(&caller, hash).await? {
        return Err(no_such_key(&key));
    }
    let modified = door.app.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let tag = format!("\"{}\"", etag(key.as_bytes()));
    Ok(([(header::LAST_MODIFIED, modified), (header::ETAG, tag)], StatusCode::OK).into_response())
}

async fn put(State(door): State<Door>, Path((bucket, key)): Path<(String, String)>, request: Request) -> Reply {
    let Signed { caller, pairs, payload, body } = signed(&door, &bucket, request).await?;
    let hash = own_hash(&caller, &key)?;
    if let Some(upload) = pairs.one("uploadId") {
        let number = pairs.number::<u32>("partNumber").ok().flatten();
        let number = number.ok_or_else(|| Trouble::bad("InvalidArgument", "a part has a partNumber"))?;
        let upload = door.dock.uploads.find(&caller, hash, upload)?;
        upload.wait_for_room(number).await?;
        let bytes = size::whole(payload.body(body), PART_MAX).await?;
        return Ok(tagged(upload.take(number, bytes).await?));
    }
    let bytes = StreamReader::new(payload.stream(body));
    door.app.put_build_file(&caller, hash, bytes).await?;
    Ok(tagged(etag(key.as_bytes())))
}

fn tagged(tag: String) -> Response {
    let headers: [(HeaderName, String); 1] = [(header::ETAG, format!("\"{tag}\""))];
    (headers, StatusCode::OK).into_response()
}

/// Begins to take a context in several pieces, or puts them together.
async fn several(State(door): State<Door>, Path((bucket, key)): Path<(String, String)>, request: Request) -> Reply {
    let begins = parameters(request.uri().query().unwrap_or_default()).iter().any(|name| name == "uploads");
    let Signed { caller, pairs, payload, body } = signed(&door, &bucket, request).await?;
    let hash = own_hash(&caller, &key)?;
    if begins {
        let id = door.dock.uploads.begin(&caller, hash)?;
        return Ok(xml(format!(
            "<InitiateMultipartUploadResult xmlns=\"{NAMESPACE}\"><Bucket>{BUCKET}</Bucket><Key>{}</Key>\
             <UploadId>{id}</UploadId></InitiateMultipartUploadResult>",
            escaped(&key)
        )));
    }
    let Some(id) = pairs.one("uploadId") else {
        return Err(Trouble::bad("InvalidRequest", "POST takes ?uploads or ?uploadId"));
    };
    let upload = door.dock.uploads.find(&caller, hash, id)?;
    let text = size::whole(payload.body(body), LIST_MAX).await?;
    let ended = upload.end(&parts::listed(&text)?).await;
    door.dock.uploads.forget(id);
    ended?;
    Ok(xml(format!(
        "<CompleteMultipartUploadResult xmlns=\"{NAMESPACE}\"><Location>/{BUCKET}/{0}</Location>\
         <Bucket>{BUCKET}</Bucket><Key>{0}</Key><ETag>&quot;{1}&quot;</ETag></CompleteMultipartUploadResult>",
        escaped(&key),
        etag(key.as_bytes())
    )))
}

async fn abort(State(door): State<Door>, Path((bucket, key)): Path<(String, String)>, request: Request) -> Reply {
    let Signed { caller, pairs, .. } = signed(&door, &bucket, request).await?;
    let hash = own_hash(&caller, &key)?;
    let Some(id) = pairs.one("uploadId") else {
        return Err(Trouble::denied(
            "AccessDenied",
            "these credentials are for putting contexts here, not for deleting",
        ));
    };
    door.dock.uploads.find(&caller, hash, id)?;
    door.dock.uploads.forget(id);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Any word will do that is the same for the same.
fn etag(of: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(&sha2::Sha256::digest(of)[..16])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;

    #[test]
    fn credentials_open_the_contexts_of_one_organisation() {
        let caller = Caller { organisation: "acme".into(), key: "k".into(), scopes: vec![Scope::Write] };
        assert_eq!(own_hash(&caller, "acme/0123/context.tar").unwrap(), "0123");
        let told = |key: &str| own_hash(&caller, key).unwrap_err();
        assert_eq!(told("other/0123/context.tar").status, StatusCode::NOT_FOUND);
        for key in ["acme/0123/other.tar", "acme/context.tar", "acme/a/b/context.tar", "acme", ""] {
            assert_eq!(told(key).status, StatusCode::FORBIDDEN, "{key}");
        }
    }
}
