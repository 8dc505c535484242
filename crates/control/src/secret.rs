//! Compares secrets.

/// Takes the same time however much of the secret matches. An absent secret matches nothing.
pub fn same(shown: impl AsRef<[u8]>, held: impl AsRef<[u8]>) -> bool {
    let (shown, held) = (shown.as_ref(), held.as_ref());
    !held.is_empty()
        && shown.len() == held.len()
        && shown.iter().zip(held).fold(0, |seen, (one, other)| seen | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_itself_is_the_same() {
        assert!(same("secret", b"secret"));
        for shown in ["", "secre", "secret ", "Secret"] {
            assert!(!same(shown, "secret"), "{shown:?}");
        }
        assert!(!same("", ""), "nothing is held, so nothing matches");
    }
}
