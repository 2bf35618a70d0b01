//! The ways in which the hub can go wrong.

/// Which requests a behaviour changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The list of files.
    Listing,
    /// The hub's reply about a file that it redirects elsewhere.
    Resolve,
    /// The reply that carries a file's bytes.
    Body,
}

/// How a run must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With the model.
    Whole,
    /// With an error that names the cause.
    Error,
    /// Depending on sizes and offsets, with either.
    Any,
}

macro_rules! behaviours {
    ($($name:ident $kind:ident $once:ident $always:ident $text:literal;)+) => {
        /// A way to misbehave.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Behaviour {
            $(#[doc = $text] $name),+
        }

        impl Behaviour {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// What it changes.
            pub fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind),+ }
            }

            /// How a run must end when it happens once, or always.
            pub fn end(self, always: bool) -> End {
                match (self, always) {
                    $((Self::$name, false) => End::$once, (Self::$name, true) => End::$always),+
                }
            }

            /// Whether only a timer ends it.
            pub fn waits(self) -> bool {
                matches!(self, Self::Stall | Self::StallAt99 | Self::Trickle | Self::SlowHeaders | Self::ListStall)
            }

            /// In words.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

behaviours! {
    Truncate Body Whole Any "closes the connection in the middle of a body";
    Reset Body Whole Any "resets the connection in the middle of a body";
    Stall Body Whole Any "stops sending in the middle of a body and keeps the connection open";
    StallAt99 Body Whole Any "stops sending just before the end of a body";
    Trickle Body Whole Any "sends a byte now and then";
    LongLength Body Whole Error "announces and sends more bytes than the file has";
    ShortLength Body Whole Error "announces fewer bytes than were asked for";
    Excess Body Any Any "sends more bytes than were asked for, without announcing a length";
    NoLength Body Whole Whole "announces no length";
    CorruptByte Body Whole Error "changes a byte";
    OtherBytes Body Whole Error "sends another file of the same length, as if it changed in between";
    Html Body Whole Error "sends a page of HTML with status 200";
    Empty Body Whole Error "sends an empty body with status 200";
    NoContent Body Whole Error "answers 204";
    IgnoreRange Body Whole Whole "ignores ranges and sends everything";
    ShiftedRange Body Whole Error "sends a range that begins elsewhere";
    WrongTotal Body Whole Error "names another total size";
    ShortPart Body Whole Any "sends a smaller part than was asked for";
    NoRangeHeader Body Whole Error "answers 206 without saying which part";
    Status416 Body Whole Error "answers 416";
    TooManyNow Body Whole Error "answers 429 with Retry-After: 0";
    TooManyLong Body Error Error "answers 429 with Retry-After: 86400";
    TooManyDate Body Whole Error "answers 429 with a date";
    Error500 Body Whole Error "answers 500";
    Error502 Body Whole Error "answers 502 with HTML";
    Error503 Body Whole Error "answers 503";
    RedirectLoop Body Whole Error "redirects to itself";
    RedirectNowhere Body Whole Error "redirects without a Location";
    RedirectToFile Body Error Error "redirects to file:///etc/passwd";
    RedirectOn Body Whole Whole "redirects to yet another origin";
    Forbidden Body Whole Error "answers 403 although HEAD was answered well";
    Gone Body Whole Error "answers 404 where the hub redirects to";
    Expire Body Whole Error "lets the signature expire in the middle of a body";
    CloseEarly Body Whole Error "closes the connection before the headers";
    Garbage Body Whole Error "answers with what is not HTTP";
    HugeHeaders Body Whole Error "sends headers without end";
    SlowHeaders Body Whole Error "lets the headers wait";
    Gzip Body Whole Error "claims that the body is compressed";
    WeakTag Body Whole Whole "sends weak and foreign ETags";
    OtherTag Resolve Whole Error "names another digest";
    OtherSize Resolve Whole Error "names another size";
    OtherCommit Resolve Whole Error "names another commit";
    Resolve500 Resolve Whole Error "answers 500 at the hub";
    Gated Resolve Error Error "says that the repository is gated";
    Unauthorized Resolve Error Error "answers 401 at the hub";
    NoHead Resolve Whole Whole "does not know HEAD";
    ListHtml Listing Whole Error "sends a page of HTML instead of the list";
    ListTruncated Listing Whole Error "closes the connection in the middle of the list";
    ListStall Listing Whole Error "stops sending in the middle of the list";
    ListEndless Listing Whole Error "sends a list without end";
    List500 Listing Whole Error "answers 500 instead of the list";
    ListMissing Listing Error Error "says that there is no such repository";
    ListNoRevision Listing Error Error "says that there is no such revision";
    ListMoved Listing Whole Whole "redirects to the repository's new name";
    ListTraversal Listing Whole Whole "lists files outside the repository";
    ListTwice Listing Whole Error "lists a file twice";
    ListBadCommit Listing Whole Error "names a commit that leads elsewhere";
    ListNoDigest Listing Whole Error "leaves a digest out";
    ListWrongSize Listing Error Error "lists a file with another size";
    ListWrongDigest Listing Error Error "lists a file with another digest";
}

/// One behaviour at one place.
#[derive(Debug, Clone)]
pub struct Fault {
    /// What happens.
    pub behaviour: Behaviour,
    /// To which file.
    pub path: String,
    /// Every time, or so many more times.
    pub times: u32,
    /// Requests of this kind that go well before.
    pub after: u32,
    /// Where in the body, in 1/1000 of it.
    pub at: u64,
}
