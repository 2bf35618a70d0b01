//! What sequences leave behind for later ones that begin alike: a radix tree over pages of tokens.
//!
//! A node is one full page of 16 tokens: its KV page and, for models with recurrent state, perhaps a checkpoint, the
//! state at the page's end. Pages and states in the tree are never written again, so that any number of sequences read
//! them. A hit is the longest known prefix or, with recurrent state, its deepest checkpoint; the rest is recomputed.
//!
//! A [`Lease`] pins the path that its sequence shares. What no lease pins can be evicted: pages from the leaves up, when
//! sequences need them, and checkpoints when there are more than their budget. Both go by least recent use, but what
//! has been hit goes after what never was, so that a flood of prompts that never return does not wash out those that
//! do. At most three quarters are favoured in this way: no past hit keeps the cache for ever.

use super::{BLOCK, CacheSizes, Checkpoint, PAGE, Sequence, Slot};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

type NodeId = u32;

/// The parent of first pages. It is no node.
const ROOT: NodeId = NodeId::MAX;

/// Why a checkpoint was made. The lowest go first when there are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Somewhere inside a prompt.
    Inside,
    /// Where a prompt or a generation ended: the next turn begins there.
    TurnEnd,
    /// A request has begun there.
    Hit,
}

/// A page's place in the tree. Different salts share nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Edge {
    parent: NodeId,
    salt: u64,
    tokens: [u32; PAGE],
}

#[derive(Debug)]
struct Node {
    edge: Edge,
    page: Arc<Slot>,
    checkpoint: Option<(Rank, Arc<Slot>)>,
    children: u32,
    /// Leases on the node or below it.
    users: u32,
    used: u64,
    hit: bool,
}

/// The path that a sequence shares with the tree, pinned. It must go back to [`PrefixCache::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    node: NodeId,
    pages: usize,
    salt: u64,
}

/// What the cache holds of a prompt.
#[derive(Debug)]
pub struct Hit {
    /// Tokens that need no computation.
    pub len: usize,
    /// Tokens known to the tree; beyond `len` there is no checkpoint.
    pub known: usize,
    /// Pins the path.
    pub lease: Lease,
    pub(super) pages: Vec<Arc<Slot>>,
    pub(super) anchor: Option<Arc<Slot>>,
}

/// The tree.
#[derive(Debug)]
pub struct PrefixCache {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    edges: HashMap<Edge, NodeId>,
    /// Unpinned leaves in the order of their eviction.
    leaves: BTreeSet<(bool, u64, NodeId)>,
    /// Nodes with a checkpoint in the order of their eviction.
    checkpoints: BTreeSet<(Rank, u64, NodeId)>,
    pinned: usize,
    /// Nodes and checkpoints that have been hit, and how many may be favoured for it.
    hits: [usize; 2],
    most_hits: [usize; 2],
    most_checkpoints: usize,
    recurrent: bool,
    enabled: bool,
    clock: u64,
}

impl PrefixCache {
    /// An empty tree over caches of `sizes`; a disabled one stays empty. `recurrent` says whether the model has state
    /// layers.
    pub fn new(sizes: &CacheSizes, recurrent: bool, enabled: bool) -> Self {
        Self {
            nodes: Vec::new(),
            free: Vec::new(),
            edges: HashMap::new(),
            leaves: BTreeSet::new(),
            checkpoints: BTreeSet::new(),
            pinned: 0,
            hits: [0, 0],
            most_hits: [sizes.pages * 3 / 4, sizes.checkpoints * 3 / 4],
            most_checkpoints: sizes.checkpoints,
            recurrent,
            enabled: enabled && (!recurrent || sizes.checkpoints > 0),
            clock: 0,
        }
    }

    /// KV pages in the tree.
    pub fn pages(&self) -> usize {
        self.edges.len()
    }

    /// KV pages in the tree that no running sequence shares.
    pub fn evictable(&self) -> usize {
        self.edges.len() - self.pinned
    }

    /// States in the tree.
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// What the tree holds of the first `most` of `tokens`.
    pub fn find(&mut self, salt: u64, tokens: &[u32], most: usize) -> Hit {
        let mut path = Vec::new();
        let mut parent = ROOT;
        let (pages, _) = tokens[..most.min(tokens.len())].as_chunks::<PAGE>();
        for tokens in pages {
            let Some(&node) = self.edges.get(&Edge { parent, salt, tokens: *tokens }) else { break };
            path.push(node);
            parent = node;
        }
        let known = path.len() * PAGE;
        if self.recurrent {
            let deepest = path.iter().rposition(|node| self.node(*node).checkpoint.is_some());
            path.truncate(deepest.map_or(0, |index| index + 1));
        }
        self.clock += 1;
        path.iter().for_each(|node| self.touch(*node, true));
        let anchor = path.last().and_then(|node| self.raise_checkpoint(*node, Rank::Hit));
        path.iter().for_each(|node| self.pin(*node));
        self.limit_hits();
        Hit {
            len: path.len() * PAGE,
            known,
            lease: Lease { node: path.last().copied().unwrap_or(ROOT), pages: path.len(), salt },
            pages: path.iter().map(|node| self.node(*node).page.clone()).collect(),
            anchor,
        }
    }

    /// Takes over what `sequence`, whose tokens begin with `tokens`, has computed: all full pages or, with recurrent
    /// state, those before the last of `checkpoints`. The lease then covers them, and where the tree holds a page
    /// already, the sequence uses that one from now on.
    pub fn insert(
        &mut self,
        lease: &mut Lease,
        sequence: &mut Sequence,
        tokens: &[u32],
        checkpoints: Vec<(Rank, Checkpoint)>,
    ) {
        if !self.enabled {
            return;
        }
        let end = match self.recurrent {
            true => checkpoints.iter().map(|(_, checkpoint)| checkpoint.position).max().unwrap_or(0),
            false => sequence.len().min(tokens.len()),
        };
        self.clock += 1;
        self.touch_path(lease.node);
        let first = lease.pages;
        let mut path = Vec::new();
        let (pages, _) = tokens[..end].as_chunks::<PAGE>();
        for (tokens, page) in pages.iter().zip(&mut sequence.pages).skip(first) {
            let edge = Edge { parent: lease.node, salt: lease.salt, tokens: *tokens };
            let node = match self.edges.get(&edge) {
                Some(&node) => {
                    *page = self.node(node).page.clone();
                    self.touch(node, false);
                    node
                }
                None => self.add(edge, page.clone()),
            };
            self.pin(node);
            path.push(node);
            (lease.node, lease.pages) = (node, lease.pages + 1);
        }
        for (rank, checkpoint) in checkpoints {
            let depth = (checkpoint.position / PAGE).checked_sub(first + 1);
            if let Some(&node) = depth.and_then(|depth| path.get(depth)) {
                self.keep_checkpoint(node, rank, checkpoint.slot);
            }
        }
    }

    /// Unpins a path.
    pub fn release(&mut self, lease: Lease) {
        let mut id = lease.node;
        while id != ROOT {
            let node = self.node_mut(id);
            node.users -= 1;
            let (parent, unused) = (node.edge.parent, node.users == 0);
            let leaf = unused && node.children == 0;
            let key = (node.hit, node.used, id);
            self.pinned -= usize::from(unused);
            if leaf {
                self.leaves.insert(key);
            }
            id = parent;
        }
        self.prune(lease.node);
    }

    /// Evicts until `count` pages have been freed or nothing is left to evict. Returns how many were freed.
    pub fn evict_pages(&mut self, count: usize) -> usize {
        let before = self.pages();
        while before - self.pages() < count {
            let Some(&(_, _, id)) = self.leaves.first() else { break };
            let parent = self.node(id).edge.parent;
            self.remove(id);
            self.prune(parent);
        }
        before - self.pages()
    }

    /// Makes room for `count` more checkpoints than there are and returns for how many there is room then.
    pub fn make_room(&mut self, count: usize) -> usize {
        if !self.enabled {
            return 0;
        }
        let count = count.min(self.most_checkpoints);
        while self.checkpoints.len() + count > self.most_checkpoints {
            let Some(&(_, _, id)) = self.checkpoints.first() else { break };
            self.drop_checkpoint(id);
            self.prune(id);
        }
        count
    }

    /// Whether checkpoints are worth making.
    pub fn wants_checkpoints(&self) -> bool {
        self.enabled && self.recurrent
    }

    /// Checks the tree against itself; `idle` says that no lease is out.
    pub fn check(&self, idle: bool) -> Result<(), String> {
        let mut children: HashMap<NodeId, u32> = HashMap::new();
        let live = || self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id as NodeId, node.as_ref()?)));
        live().for_each(|(_, node)| *children.entry(node.edge.parent).or_default() += 1);
        let mut counted = [0; 5];
        for (id, node) in live() {
            let fail = |what: &str| Err(format!("prefix cache, node {id}: {what}"));
            if node.children != children.get(&id).copied().unwrap_or(0) {
                return fail("its children are miscounted");
            }
            if self.edges.get(&node.edge) != Some(&id) {
                return fail("it is not at its edge");
            }
            if idle && (node.users > 0 || Arc::strong_count(&node.page) > 1) {
                return fail("something idle holds it");
            }
            if self.leaves.contains(&(node.hit, node.used, id)) != (node.children == 0 && node.users == 0) {
                return fail("it is misplaced among the leaves");
            }
            if self.recurrent && node.children == 0 && node.users == 0 && node.checkpoint.is_none() {
                return fail("nothing can begin there");
            }
            if let Some((rank, slot)) = &node.checkpoint {
                if !self.checkpoints.contains(&(*rank, node.used, id)) {
                    return fail("its checkpoint is misplaced");
                }
                if idle && Arc::strong_count(slot) > 1 {
                    return fail("something idle holds its checkpoint");
                }
                counted[1] += usize::from(*rank == Rank::Hit);
                counted[3] += 1;
            }
            counted[0] += usize::from(node.hit);
            counted[2] += usize::from(node.users > 0);
            counted[4] += 1;
        }
        let kept = [self.hits[0], self.hits[1], self.pinned, self.checkpoints.len(), self.edges.len()];
        match kept == counted && self.checkpoints.len() <= self.most_checkpoints {
            true => Ok(()),
            false => Err(format!("prefix cache: counts are {kept:?}, but should be {counted:?}")),
        }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().unwrap_or_else(|| panic!("node {id} has been removed"))
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().unwrap_or_else(|| panic!("node {id} has been removed"))
    }

    fn add(&mut self, edge: Edge, page: Arc<Slot>) -> NodeId {
        let id = self.free.pop().unwrap_or(self.nodes.len() as NodeId);
        if edge.parent != ROOT {
            let parent = self.node_mut(edge.parent);
            parent.children += 1;
            let key = (parent.hit, parent.used, edge.parent);
            self.leaves.remove(&key);
        }
        let node =
            Node { edge: edge.clone(), page, checkpoint: None, children: 0, users: 0, used: self.clock, hit: false };
        match self.nodes.get_mut(id as usize) {
            Some(slot) => *slot = Some(node),
            None => self.nodes.push(Some(node)),
        }
        self.leaves.insert((false, self.clock, id));
        self.edges.insert(edge, id);
        id
    }

    /// Removes an unpinned leaf.
    fn remove(&mut self, id: NodeId) {
        self.drop_checkpoint(id);
        let Some(node) = self.nodes[id as usize].take() else { return };
        self.leaves.remove(&(node.hit, node.used, id));
        self.hits[0] -= usize::from(node.hit);
        self.edges.remove(&node.edge);
        self.free.push(id);
        let parent = node.edge.parent;
        if parent != ROOT {
            let parent_node = self.node_mut(parent);
            parent_node.children -= 1;
            if parent_node.children == 0 && parent_node.users == 0 {
                let key = (parent_node.hit, parent_node.used, parent);
                self.leaves.insert(key);
            }
        }
    }

    /// With recurrent state, removes unpinned leaves from `id` upwards that no checkpoint makes useful.
    fn prune(&mut self, mut id: NodeId) {
        while self.recurrent && id != ROOT {
            let Some(node) = self.nodes[id as usize].as_ref() else { return };
            if node.children > 0 || node.users > 0 || node.checkpoint.is_some() {
                return;
            }
            let parent = node.edge.parent;
            self.remove(id);
            id = parent;
        }
    }

    fn pin(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        node.users += 1;
        let (first, key) = (node.users == 1, (node.hit, node.used, id));
        if first {
            self.leaves.remove(&key);
            self.pinned += 1;
        }
    }

    /// Notes that a node has been used just now.
    fn touch(&mut self, id: NodeId, hit: bool) {
        let clock = self.clock;
        let node = self.node_mut(id);
        let (old, rank) = ((node.hit, node.used, id), node.checkpoint.as_ref().map(|(rank, _)| *rank));
        let first_hit = hit && !node.hit;
        node.used = clock;
        node.hit |= hit;
        let new = (node.hit, clock, id);
        self.hits[0] += usize::from(first_hit);
        if self.leaves.remove(&old) {
            self.leaves.insert(new);
        }
        if let Some(rank) = rank {
            self.checkpoints.remove(&(rank, old.1, id));
            self.checkpoints.insert((rank, clock, id));
        }
    }

    fn touch_path(&mut self, mut id: NodeId) {
        while id != ROOT {
            self.touch(id, false);
            id = self.node(id).edge.parent;
        }
    }

    fn keep_checkpoint(&mut self, id: NodeId, rank: Rank, slot: Arc<Slot>) {
        if self.raise_checkpoint(id, rank).is_some() || self.make_room(1) == 0 {
            return;
        }
        let node = self.node_mut(id);
        node.checkpoint = Some((rank, slot));
        let key = (rank, node.used, id);
        self.checkpoints.insert(key);
    }

    /// The checkpoint of a node, of at least this rank from now on.
    fn raise_checkpoint(&mut self, id: NodeId, rank: Rank) -> Option<Arc<Slot>> {
        let node = self.node_mut(id);
        let used = node.used;
        let (old, slot) = node.checkpoint.as_mut()?;
        let before = std::mem::replace(old, rank.max(*old));
        let slot = slot.clone();
        if before < rank {
            self.checkpoints.remove(&(before, used, id));
            self.checkpoints.insert((rank, used, id));
            self.hits[1] += usize::from(rank == Rank::Hit);
        }
        Some(slot)
    }

    fn drop_checkpoint(&mut self, id: NodeId) {
        let node = self.node_mut(id);
        let used = node.used;
        if let Some((rank, _)) = node.checkpoint.take() {
            self.checkpoints.remove(&(rank, used, id));
            self.hits[1] -= usize::from(rank == Rank::Hit);
        }
    }

    /// Takes the favour from the longest unused while there are too many hits.
    fn limit_hits(&mut self) {
        while self.hits[0] > self.most_hits[0] {
            let Some(&(_, used, id)) = self.leaves.range((true, 0, 0)..).next() else { break };
            self.node_mut(id).hit = false;
            self.hits[0] -= 1;
            self.leaves.remove(&(true, used, id));
            self.leaves.insert((false, used, id));
        }
        while self.hits[1] > self.most_hits[1] {
            let Some(&(_, used, id)) = self.checkpoints.range((Rank::Hit, 0, 0)..).next() else { break };
            if let Some((rank, _)) = &mut self.node_mut(id).checkpoint {
                *rank = Rank::TurnEnd;
            }
            self.hits[1] -= 1;
            self.checkpoints.remove(&(Rank::Hit, used, id));
            self.checkpoints.insert((Rank::TurnEnd, used, id));
        }
    }
}

const _: () = assert!(BLOCK.is_multiple_of(PAGE), "a checkpoint stands at the end of a page");

#[cfg(test)]
impl PrefixCache {
    pub(crate) fn page_ids(&self) -> Vec<u32> {
        self.nodes.iter().flatten().map(|node| node.page.id()).collect()
    }
}

#[cfg(test)]
mod tests;
