//! Files with holes: which parts of them follow in the archive.
//!
//! Four forms exist: GNU's own (in the header), and pax 0.0 (a record per number), 0.1 (one record) and 1.0 (before the
//! data, as text). Each becomes a list of parts in order, within the file's size; anything else is refused.

use super::pax;

/// Offset and length of each part that follows.
pub type Parts = Vec<(u64, u64)>;

/// As many parts as a file may have.
const MOST: usize = 1 << 18;

/// What the records say about holes.
#[derive(Debug, Default)]
pub(super) struct Records {
    major: Option<u64>,
    minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    size: Option<u64>,
    numbers: Vec<u64>,
    is_sparse: bool,
}

/// How the map is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Map {
    None,
    Here {
        size: u64,
        parts: Parts,
    },
    /// In the data: the file's size, the map follows.
    InData {
        size: u64,
    },
}

const NONSENSE: &str = "its list of holes makes no sense";

impl Records {
    /// Takes a record whose key begins with `GNU.sparse.`.
    pub fn take(&mut self, key: &str, value: &[u8]) -> Result<(), &'static str> {
        self.is_sparse = true;
        let number = || pax::number(value).ok_or(NONSENSE);
        match key {
            "major" => self.major = Some(number()?),
            "minor" => self.minor = Some(number()?),
            "name" => self.name = Some(value.to_vec()),
            "size" | "realsize" => self.size = Some(number()?),
            "offset" if self.numbers.len().is_multiple_of(2) => self.numbers.push(number()?),
            "numbytes" if !self.numbers.len().is_multiple_of(2) => self.numbers.push(number()?),
            "map" => {
                let text = std::str::from_utf8(value).map_err(|_| NONSENSE)?;
                for number in text.split(',').filter(|number| !number.is_empty()) {
                    self.numbers.push(pax::number(number.as_bytes()).ok_or(NONSENSE)?);
                }
            }
            "numblocks" => {
                number()?;
            }
            _ => return Err("its holes are told in a form that is unknown here"),
        }
        match self.numbers.len() > 2 * MOST {
            true => Err("it has too many holes"),
            false => Ok(()),
        }
    }

    pub fn map(self) -> Result<Map, &'static str> {
        if !self.is_sparse {
            return Ok(Map::None);
        }
        let size = self.size.ok_or(NONSENSE)?;
        match (self.major, self.minor) {
            (None | Some(0), _) => {
                let mut numbers = self.numbers.into_iter();
                let mut parts = Parts::new();
                while let Some(offset) = numbers.next() {
                    parts.push((offset, numbers.next().ok_or(NONSENSE)?));
                }
                Ok(Map::Here { size, parts })
            }
            (Some(1), Some(0)) => Ok(Map::InData { size }),
            _ => Err("its holes are told in a form that is unknown here"),
        }
    }
}

/// The numbers of pax 1.0: the count of parts, then offset and length of each, a line each.
#[derive(Default)]
pub(super) struct Lines {
    numbers: Vec<u64>,
    line: Vec<u8>,
}

impl Lines {
    /// Takes a block; the parts, once they are complete.
    pub fn take(&mut self, block: &[u8]) -> Result<Option<Parts>, &'static str> {
        for byte in block {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > 20 {
                    return Err(NONSENSE);
                }
                continue;
            }
            let number = pax::number(&self.line).filter(|_| !self.line.is_empty()).ok_or(NONSENSE)?;
            self.line.clear();
            self.numbers.push(number);
            let count = self.numbers.first().copied().unwrap_or(0);
            if count > MOST as u64 {
                return Err("it has too many holes");
            }
            if self.numbers.len() as u64 == 1 + 2 * count {
                let pairs = self.numbers.get(1..).unwrap_or_default().chunks_exact(2);
                return Ok(Some(pairs.filter_map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect()));
            }
        }
        Ok(None)
    }
}

/// In order, not overlapping, within the file, and together as long as the data.
pub(super) fn check(parts: &Parts, size: u64, data: u64) -> Result<(), &'static str> {
    let (mut end, mut total) = (0_u64, 0_u64);
    if parts.len() > MOST || i64::try_from(size).is_err() {
        return Err(NONSENSE);
    }
    for (offset, length) in parts {
        let next = offset.checked_add(*length).ok_or(NONSENSE)?;
        if *offset < end || next > size {
            return Err(NONSENSE);
        }
        end = next;
        total += length;
    }
    match total == data {
        true => Ok(()),
        false => Err(NONSENSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(records: &[(&str, &str)]) -> Result<Map, &'static str> {
        let mut all = Records::default();
        for (key, value) in records {
            all.take(key, value.as_bytes())?;
        }
        all.map()
    }

    #[test]
    fn three_forms_of_records_are_read() {
        let here = Ok(Map::Here { size: 100, parts: vec![(0, 5), (50, 6)] });
        let separate = [
            ("size", "100"),
            ("numblocks", "2"),
            ("offset", "0"),
            ("numbytes", "5"),
            ("offset", "50"),
            ("numbytes", "6"),
        ];
        assert_eq!(map(&separate), here);
        assert_eq!(map(&[("size", "100"), ("map", "0,5,50,6")]), here);
        let named = [("major", "1"), ("minor", "0"), ("name", "x"), ("realsize", "100")];
        assert_eq!(map(&named), Ok(Map::InData { size: 100 }));
        assert_eq!(map(&[]), Ok(Map::None));
    }

    #[test]
    fn nonsense_is_refused() {
        for wrong in [
            &[("map", "0,5")][..],
            &[("size", "100"), ("map", "0")],
            &[("size", "100"), ("map", "0,x")],
            &[("size", "100"), ("numbytes", "1")],
            &[("size", "100"), ("offset", "1"), ("offset", "1")],
            &[("size", "100"), ("major", "2"), ("minor", "0")],
            &[("size", "100"), ("colour", "2")],
        ] {
            assert!(map(wrong).is_err(), "{wrong:?}");
        }
        assert!(check(&vec![(0, 5), (50, 6)], 100, 11).is_ok());
        for (parts, size, data) in [
            (vec![(5, 5), (0, 5)], 100, 10),
            (vec![(0, 5), (4, 5)], 100, 10),
            (vec![(96, 5)], 100, 5),
            (vec![(u64::MAX, 5)], 100, 5),
            (vec![(0, 5)], 100, 4),
            (vec![(0, 5)], u64::MAX, 5),
        ] {
            assert!(check(&parts, size, data).is_err(), "{parts:?}");
        }
    }

    #[test]
    fn a_map_in_the_data_is_read_over_blocks() {
        let text = b"2\n0\n5\n50\n6\nrest";
        let mut lines = Lines::default();
        assert_eq!(lines.take(&text[..4]), Ok(None));
        assert_eq!(lines.take(&text[4..]), Ok(Some(vec![(0, 5), (50, 6)])));
        assert_eq!(Lines::default().take(b"0\n"), Ok(Some(vec![])));
        for wrong in [&b"x\n"[..], b"\n", b"99999999\n", b"184467440737095516150\n", &[b'1'; 30]] {
            assert!(Lines::default().take(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
