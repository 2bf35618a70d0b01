//! What the hub holds.

use serde_json::json;
use sha2::Digest;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers from a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37_79b9))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// So many bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// A file at the hub.
#[derive(Debug, Clone)]
pub struct File {
    /// Its bytes.
    pub content: Arc<Vec<u8>>,
    /// Whether it is in large-file storage.
    pub lfs: bool,
    /// The name of its blob.
    pub digest: String,
}

impl File {
    /// A file with its digest.
    pub fn new(content: Vec<u8>, lfs: bool) -> Self {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let digest = if lfs {
            hex(&sha2::Sha256::digest(&content))
        } else {
            let mut git = sha1::Sha1::new();
            git.update(format!("blob {}\0", content.len()));
            git.update(&content);
            hex(&git.finalize())
        };
        Self { content: Arc::new(content), lfs, digest }
    }
}

/// A repository at one commit.
#[derive(Debug, Clone)]
pub struct Repo {
    /// `owner/name`.
    pub id: String,
    /// Its only commit.
    pub commit: String,
    /// Its files by path.
    pub files: BTreeMap<String, File>,
    /// Which of them a fetch must bring, and no others.
    pub wanted: Vec<String>,
}

impl Repo {
    /// A model of one or several weight files of random sizes, with things beside it that nobody must fetch.
    pub fn random(random: &mut Random, largest: u64) -> Self {
        let mut files = BTreeMap::new();
        let mut small = |name: &str, random: &mut Random| {
            let length = random.below(3000) as usize;
            files.insert(name.to_owned(), File::new(random.bytes(length), false));
        };
        for name in ["config.json", "tokenizer_config.json", "chat_template.jinja"] {
            small(name, random);
        }
        for name in ["modeling_evil.py", "README.md", ".gitattributes"] {
            small(name, random);
        }
        let shards = random.below(3) as usize;
        let names: Vec<String> = match shards {
            0 => vec!["model.safetensors".to_owned()],
            _ => (0..=shards).map(|index| format!("model-{index}.safetensors")).collect(),
        };
        for name in
            names.iter().map(String::as_str).chain(["tokenizer.json", "pytorch_model.bin", "original/x.safetensors"])
        {
            // Empty files and files of one byte are files too.
            let length = if random.below(12) == 0 { random.below(2) } else { random.below(largest) };
            files.insert(name.to_owned(), File::new(random.bytes(length as usize), true));
        }
        if shards > 0 {
            let map: serde_json::Map<String, serde_json::Value> =
                names.iter().enumerate().map(|(index, name)| (format!("tensor.{index}"), json!(name))).collect();
            let index = json!({ "weight_map": map }).to_string().into_bytes();
            files.insert("model.safetensors.index.json".to_owned(), File::new(index, false));
        }
        let unwanted = |name: &str| name.contains("evil") || name.ends_with(".bin") || name.contains('/');
        let plain = |name: &String| !unwanted(name) && name != "README.md" && name != ".gitattributes";
        let wanted = files.keys().filter(|name| plain(name)).cloned().collect();
        let commit = random.bytes(20).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id: "org/model".to_owned(), commit, files, wanted }
    }

    /// A repository of given files, all of them wanted; safetensors are in large-file storage.
    pub fn of(id: &str, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let file = |(name, content): (String, Vec<u8>)| {
            let lfs = name.ends_with(".safetensors");
            (name, File::new(content, lfs))
        };
        let files: BTreeMap<String, File> = files.into_iter().map(file).collect();
        let wanted = files.keys().cloned().collect();
        Self { id: id.to_owned(), commit: "c0ffee".repeat(7)[..40].to_owned(), files, wanted }
    }

    /// What the API says about it.
    pub(crate) fn listing(&self) -> serde_json::Value {
        let sibling = |(path, file): (&String, &File)| {
            let mut sibling = json!({ "rfilename": path, "size": file.content.len(), "blobId": file.digest });
            if file.lfs {
                sibling["blobId"] = json!("ab".repeat(20));
                sibling["lfs"] = json!({ "sha256": file.digest, "size": file.content.len(), "pointerSize": 134 });
            }
            sibling
        };
        json!({
            "id": self.id,
            "sha": self.commit,
            "gated": false,
            "siblings": self.files.iter().map(sibling).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn by_digest(&self, digest: &str) -> Option<&File> {
        self.files.values().find(|file| file.digest == digest)
    }
}
