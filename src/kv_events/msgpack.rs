//! As much of `MessagePack` as KV events need, read in place.
//!
//! Promises: never panics, never recurses, allocates nothing; each call either reads one whole item or is `None`.

/// A scalar; containers are entered with [`Reader::array`] and [`Reader::map`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    /// Signed ones as the bits that they are.
    Int(u64),
    Float,
    Text(&'a [u8]),
    Bytes(&'a [u8]),
}

/// What the next item is, with the bytes of its head consumed.
enum Item<'a> {
    Scalar(Value<'a>),
    Array(usize),
    Map(usize),
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            length: bytes.len(),
        }
    }

    /// Bytes consumed.
    pub(super) const fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    pub(super) fn value(&mut self) -> Option<Value<'a>> {
        match self.item()? {
            Item::Scalar(value) => Some(value),
            Item::Array(_) | Item::Map(_) => None,
        }
    }

    /// Members of the array that follow.
    pub(super) fn array(&mut self) -> Option<usize> {
        match self.item()? {
            Item::Array(members) => Some(members),
            Item::Scalar(_) | Item::Map(_) => None,
        }
    }

    /// Pairs of the map that follow.
    pub(super) fn map(&mut self) -> Option<usize> {
        match self.item()? {
            Item::Map(pairs) => Some(pairs),
            Item::Scalar(_) | Item::Array(_) => None,
        }
    }

    /// Passes one item with all that is in it.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut left: usize = 1;
        while left > 0 {
            left -= 1;
            left = match self.item()? {
                Item::Scalar(_) => left,
                Item::Array(members) => left.checked_add(members)?,
                Item::Map(pairs) => left.checked_add(pairs.checked_mul(2)?)?,
            };
        }
        Some(())
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let head = self.byte()?;
        let scalar = |value| Some(Item::Scalar(value));
        match head {
            0x00..=0x7f => scalar(Value::Int(u64::from(head))),
            0x80..=0x8f => Some(Item::Map(usize::from(head & 0x0f))),
            0x90..=0x9f => Some(Item::Array(usize::from(head & 0x0f))),
            0xa0..=0xbf => scalar(Value::Text(self.take(usize::from(head & 0x1f))?)),
            0xc0 => scalar(Value::Nil),
            0xc2 | 0xc3 => scalar(Value::Bool),
            0xc4..=0xc6 => {
                let length = self.size(1 << (head - 0xc4))?;
                scalar(Value::Bytes(self.take(length)?))
            }
            // Extensions: a length, or one that the head says, and a type before the bytes.
            0xc7..=0xc9 => {
                let length = self.size(1 << (head - 0xc7))?;
                scalar(Value::Bytes(self.take(length.checked_add(1)?)?))
            }
            0xca => self.take(4).map(|_| Item::Scalar(Value::Float)),
            0xcb => self.take(8).map(|_| Item::Scalar(Value::Float)),
            0xcc..=0xcf => scalar(Value::Int(self.number(1 << (head - 0xcc))?)),
            0xd0..=0xd3 => {
                let width = 1 << (head - 0xd0);
                let bits = 64 - 8 * u32::try_from(width).ok()?;
                let number = self.number(width)?.wrapping_shl(bits);
                scalar(Value::Int((number.cast_signed() >> bits).cast_unsigned()))
            }
            0xd4..=0xd8 => scalar(Value::Bytes(self.take((1 << (head - 0xd4)) + 1)?)),
            0xd9..=0xdb => {
                let length = self.size(1 << (head - 0xd9))?;
                scalar(Value::Text(self.take(length)?))
            }
            0xdc | 0xdd => Some(Item::Array(self.size(2 << (head - 0xdc))?)),
            0xde | 0xdf => Some(Item::Map(self.size(2 << (head - 0xde))?)),
            0xe0..=0xff => scalar(Value::Int(i64::from(head.cast_signed()).cast_unsigned())),
            0xc1 => None,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|one| one[0])
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self, width: usize) -> Option<u64> {
        let bytes = self.take(width)?;
        Some(
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte)),
        )
    }

    fn size(&mut self, width: usize) -> Option<usize> {
        usize::try_from(self.number(width)?).ok()
    }
}
