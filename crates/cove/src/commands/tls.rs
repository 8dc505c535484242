//! `cove tls`: what clients of this server must trust, and which certificate they get.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use cove_control::clock::Timestamp;
use cove_control::tls::authority::{BUNDLE, CERTIFICATE, Renewal};
use cove_control::tls::certificate::{Facts, day};
use cove_control::tls::record::{Issuer, Record};
use cove_control::tls::{Authority, TlsError, certified_domain, look};
use serde_json::json;

use crate::complaint::Complaint;
use crate::place::Place;
use crate::render::{print, print_json, say};

/// Show what clients must trust, and the server's certificate
///
/// The local authority is made on first use, in the data directory; its key never leaves it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove tls
  eval \"$(cove tls env)\"")]
pub struct Arguments {
    #[command(subcommand)]
    act: Option<Act>,
    /// The server's data directory [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR", env = "COVE_DATA", global = true)]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Print `export` lines alone, for eval "$(cove tls env)"
    Env,
    /// Renew the authority's certificate; a running server uses it at once
    Renew {
        /// With another key, if the old one was stolen: every client must trust the new one
        #[arg(long)]
        new_key: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let folder = Place::new(arguments.data.clone()).data().join("tls");
    let record = Record::read(&folder);
    match arguments.act {
        None => show(&folder, record.as_ref(), arguments.json)?,
        Some(Act::Env) => env(&folder, record.as_ref())?,
        Some(Act::Renew { new_key, json }) => {
            let renewal = if new_key { Renewal::NewKey } else { Renewal::SameKey };
            let made =
                Authority::renew(&folder, domain_of(record.as_ref()), renewal, Timestamp::now()).map_err(complain)?;
            let file = made.certificate_file();
            if json {
                let facts = facts_json(&Facts::of_file(&file).map_err(complain)?);
                print_json(&json!({ "file": file, "certificate": facts }))?;
            } else {
                print(&told_authority(&file)?)?;
            }
            if new_key {
                say("hint: clients that trust a copy of the old certificate need the new one");
            }
        }
    }
    Ok(0)
}

/// The lines that a client's environment needs.
pub fn exports(folder: &Path, record: &Record) -> Vec<String> {
    let mut lines = vec![format!("export E2B_DOMAIN={}", record.client_domain())];
    if record.issuer == Issuer::LocalAuthority {
        lines.extend(trust(folder));
    }
    lines
}

/// Python and most others read one file with all trusted authorities; Node adds to its own.
fn trust(folder: &Path) -> [String; 3] {
    let (bundle, alone) = (folder.join(BUNDLE), folder.join(CERTIFICATE));
    [
        format!("export SSL_CERT_FILE={}", bundle.display()),
        format!("export REQUESTS_CA_BUNDLE={}", bundle.display()),
        format!("export NODE_EXTRA_CA_CERTS={}", alone.display()),
    ]
}

fn env(folder: &Path, record: Option<&Record>) -> Result<(), Complaint> {
    let lines = match record {
        Some(record) => exports(folder, record),
        None => {
            make_sure(folder, record)?;
            trust(folder).to_vec()
        }
    };
    print(&lines.join("\n"))
}

fn show(folder: &Path, record: Option<&Record>, as_json: bool) -> Result<(), Complaint> {
    let local = record.is_none_or(|record| record.issuer == Issuer::LocalAuthority);
    if local {
        make_sure(folder, record)?;
    }
    let shown = record.map(|record| look::shown(record.address, &format!("api.{}", certified_domain(&record.domain))));
    if as_json {
        let shown = shown.and_then(Result::ok).map(|facts| facts_json(&facts));
        let authority = folder.join(CERTIFICATE);
        let facts = if local { Some(facts_json(&Facts::of_file(&authority).map_err(complain)?)) } else { None };
        return print_json(&json!({
            "authority": facts.map(|facts| json!({ "file": authority, "bundle": folder.join(BUNDLE), "certificate": facts })),
            "domain": record.map(Record::client_domain),
            "address": record.map(|record| record.address),
            "shown": shown,
        }));
    }
    if local {
        print(&told_authority(&folder.join(CERTIFICATE))?)?;
    }
    match (record, shown) {
        (Some(record), Some(Ok(facts))) => {
            print(&format!("shown      at {}, for {}", record.address, facts.names.join(", ")))?;
            print(&format!("           by {}, until {}", facts.issuer, day(facts.good_until)))?;
            print(&format!("           SHA-256 {}", facts.fingerprint))?;
        }
        (Some(record), Some(Err(error))) => print(&format!("shown      nothing at {}: {error}", record.address))?,
        _ => say("hint: no server of this data directory has listened with TLS yet: cove serve --tls 127.0.0.1:7443"),
    }
    print("clients need")?;
    let lines = record.map_or_else(|| trust(folder).to_vec(), |record| exports(folder, record));
    print(&format!("  {}", lines.join("\n  ")))
}

fn facts_json(facts: &Facts) -> serde_json::Value {
    json!({
        "names": facts.names,
        "issuer": facts.issuer,
        "good_from": facts.good_from,
        "good_until": facts.good_until,
        "sha256": facts.fingerprint,
    })
}

fn told_authority(file: &Path) -> Result<String, Complaint> {
    let facts = Facts::of_file(file).map_err(complain)?;
    let (path, until) = (file.display(), day(facts.good_until));
    Ok(format!("authority  {path}, until {until}\n           SHA-256 {}", facts.fingerprint))
}

/// Reads the certificate; makes one if there is none, which needs the right to write.
fn make_sure(folder: &Path, record: Option<&Record>) -> Result<(), Complaint> {
    if folder.join(CERTIFICATE).is_file() && folder.join(BUNDLE).is_file() {
        return Ok(());
    }
    Authority::open(folder, domain_of(record), Timestamp::now()).map(drop).map_err(complain)
}

/// What the authority may sign for: the domain of the server that last listened with TLS, or the usual one.
fn domain_of(record: Option<&Record>) -> &str {
    record.map_or("localhost", |record| &record.domain)
}

fn complain(error: TlsError) -> Complaint {
    let complaint = Complaint::failed(error.to_string());
    match &error {
        TlsError::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            complaint.hint("the data directory belongs to the user who runs the server; name another with --data")
        }
        _ => complaint,
    }
}
