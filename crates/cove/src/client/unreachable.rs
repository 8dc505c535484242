//! Why no answer came, in words that lead to the remedy: libraries name what they read, not what it means.

use crate::complaint::Complaint;

const START: &str = "start one with `cove serve`, or set COVE_URL to the address of yours";

/// `cause` is what the library said.
pub fn complaint(url: &str, cause: &str) -> Complaint {
    // The WebSocket's library puts a word of its own before what the system said.
    let cause = cause.strip_prefix("IO error: ").unwrap_or(cause);
    if let Some((_, why)) = cause.split_once("invalid peer certificate: ") {
        let complaint = Complaint::failed(format!("the certificate of the server at {url} is not trusted: {why}"));
        return match why {
            "UnknownIssuer" => complaint
                .hint("on its own machine: eval \"$(cove tls env)\"; elsewhere SSL_CERT_FILE names its authority"),
            _ => complaint.hint("`cove tls`, on the server's machine, shows the names that it is for"),
        };
    }
    match url.split_once("://") {
        // The first byte of a TLS alert is no letter of HTTP.
        Some(("http", rest)) if cause.contains("invalid HTTP version") => {
            Complaint::failed(format!("the server at {url} speaks TLS")).hint(format!("set COVE_URL=https://{rest}"))
        }
        Some(("https", rest)) if cause.contains("InvalidContentType") => {
            Complaint::failed(format!("the server at {url} does not speak TLS"))
                .hint(format!("set COVE_URL=http://{rest}, or the address that it was given with --tls"))
        }
        _ => Complaint::failed(format!("no server answers at {url}: {cause}")).hint(START),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_says_becomes_what_a_person_can_do() {
        let said = |url, cause| complaint(url, cause).to_string();
        let untrusted = said("https://x:1", "invalid peer certificate: UnknownIssuer");
        assert!(untrusted.contains("is not trusted") && untrusted.contains("cove tls env"), "{untrusted}");
        let other = said("https://x:1", "invalid peer certificate: certificate not valid for name \"x\"");
        assert!(other.contains("is not trusted: certificate not valid for name"), "{other}");
        let secure = said("http://x:1", "invalid HTTP version parsed");
        assert!(secure.ends_with("hint: set COVE_URL=https://x:1"), "{secure}");
        let plain = said("https://x:1", "received corrupt message of type InvalidContentType");
        assert!(plain.contains("does not speak TLS\nhint: set COVE_URL=http://x:1"), "{plain}");
        let nobody = said("http://x:1", "Connection refused (os error 111)");
        assert!(nobody.contains("no server answers at http://x:1") && nobody.contains("cove serve"), "{nobody}");
        assert_eq!(said("http://x:1", "IO error: Connection refused (os error 111)"), nobody);
    }
}
