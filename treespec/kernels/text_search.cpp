// Trees of the most frequent continuations of a text, for the sources that draft from token ids.
//
// The same searches as in treespec/draft/text, which is their reference: best first (best_first.py) over places of
// a text (ngrams.py), over a sorted datastore (datastore.py), and over the trie of all windows (trie.py). Arguments
// are not checked here. Sizes and ids fit in 32 bits; -1 separates texts.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace {

constexpr int32_t END = -1, NONE = -1, ROOT = 0;
constexpr int64_t DAMAGED = -1;  // places that lie outside the text

struct Limits {
  int64_t depth, drafted, branching;
};

template <class Place>
struct Follower {
  int32_t token;
  int64_t count;
  Place at;
};

using Order = std::pair<int64_t, int64_t>;  // among equal counts, smaller ones come first

// A tree in the caller's arrays: the parent of every node and the token of every node but the root.
struct Tree {
  int32_t *parents, *tokens;
  int64_t drafted = 0, counts = 0;
};

// `followers(place, found)` appends the followers of a place; `order(follower, depth)` orders equal counts. Of equal
// keys the one found first comes first.
template <class Place, class Followers, class Ordering>
void best_first(Place start, const Limits& limits, Followers followers, Ordering order, Tree& tree) {
  struct Candidate {
    int64_t count;
    Order order;
    int64_t found, depth;
    int32_t parent, token;
    Place at;
  };
  auto later = [](const Candidate& a, const Candidate& b) {
    if (a.count != b.count) return a.count < b.count;
    return a.order != b.order ? a.order > b.order : a.found > b.found;
  };
  std::vector<Candidate> heap, siblings;
  std::vector<Follower<Place>> found;
  int64_t tick = 0;
  auto push_children = [&](int32_t node, int64_t depth, const Place& place) {
    if (depth == limits.depth) return;
    found.clear(), siblings.clear();
    followers(place, found);
    for (auto& f : found)
      siblings.push_back({f.count, order(f, depth + 1), tick++, depth + 1, node, f.token, f.at});
    auto sooner = [&](const Candidate& a, const Candidate& b) { return later(b, a); };
    const size_t kept = std::min<size_t>(siblings.size(), limits.branching);
    std::partial_sort(siblings.begin(), siblings.begin() + kept, siblings.end(), sooner);
    for (size_t i = 0; i < kept; ++i) {
      siblings[i].found = tick++;
      heap.push_back(siblings[i]);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  tree.parents[0] = NONE, tree.drafted = tree.counts = 0;
  push_children(0, 0, start);
  while (!heap.empty() && tree.drafted < limits.drafted) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate best = heap.back();
    heap.pop_back();
    tree.tokens[tree.drafted++] = best.token;
    tree.parents[tree.drafted] = best.parent;
    tree.counts += best.count;
    if (tree.drafted < limits.drafted) push_children(int32_t(tree.drafted), best.depth, best.at);
  }
}

// -- places of a text -----------------------------------------------------------------------------

struct Range {
  int64_t begin, end;
};

// Groups places by the token that stands there, in the order of the places. Groups lie one after another in a pool.
class Places {
 public:
  Places(const int32_t* text, int64_t length, const int32_t* places, int64_t count)
      : text_(text), length_(length), pool_(places, places + count) {
    size_t room = 16;
    while (room < 2 * size_t(count)) room *= 2;
    slots_.assign(room, NONE);
  }

  Range all() const { return {0, int64_t(pool_.size())}; }

  int32_t last(const Range& range) const { return pool_[range.end - 1]; }

  void followers(Range range, std::vector<Follower<Range>>& found) {
    const size_t mask = slots_.size() - 1;
    touched_.clear(), group_.clear();
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int32_t place = pool_[i], token = place < length_ ? text_[place] : END;
      int32_t group = NONE;
      if (token != END) {
        size_t slot = uint32_t(token) * 2654435761u & mask;
        while (slots_[slot] != NONE && found[slots_[slot]].token != token) slot = (slot + 1) & mask;
        if (slots_[slot] == NONE) {
          slots_[slot] = int32_t(found.size());
          touched_.push_back(slot);
          found.push_back({token, 0, {0, 0}});
        }
        group = slots_[slot];
        ++found[group].count;
      }
      group_.push_back(group);
    }
    for (size_t slot : touched_) slots_[slot] = NONE;
    int64_t begin = int64_t(pool_.size());
    for (auto& f : found) {
      f.at = {begin, begin};
      begin += f.count;
    }
    pool_.resize(begin);
    for (int64_t i = range.begin; i < range.end; ++i) {
      const int32_t group = group_[i - range.begin];
      if (group != NONE) pool_[found[group].at.end++] = pool_[i] + 1;
    }
  }

 private:
  const int32_t* text_;
  int64_t length_;
  std::vector<int32_t> pool_, slots_, group_;
  std::vector<size_t> touched_;
};

// -- the trie of all windows ----------------------------------------------------------------------

struct Node {
  int64_t count = 0, edge = 0;  // windows through it; position of its edge in the text, dropped tokens included
  int32_t length = 0, first = NONE, last = NONE, next = NONE, before = NONE;  // of its edge; children; siblings
};

struct Locus {
  int32_t node, along;
};

class Trie {
 public:
  explicit Trie(int64_t window) : window(window), nodes_(1), keys_(64, EMPTY), values_(64) {}

  const int64_t window;
  std::vector<int32_t> text;
  uint64_t history = 0;  // a hash of all calls that changed it

  void read(const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      text.push_back(tokens[i]);
      note(uint32_t(tokens[i]));
      if (end() - next_ == window) insert(next_++, window);
    }
  }

  void finish() {
    note(uint64_t(1) << 32);
    for (; next_ < end(); ++next_) insert(next_, end() - next_);
  }

  // Drop the first tokens, an ended text.
  void drop(int64_t count) {
    const int64_t begin = dropped_;
    note(uint64_t(2) << 32 | uint64_t(count));
    for (int64_t i = 0; i < count; ++i) remove(begin + i, std::min(window, count - i));
    text.erase(text.begin(), text.begin() + count);
    dropped_ += count;
  }

  int64_t size() const { return int64_t(nodes_.size() - free_.size()); }
  int64_t slots() const { return int64_t(nodes_.size()); }
  int64_t open() const { return next_ - dropped_; }  // begin of the open end in `text`
  int64_t count(Locus at) const { return nodes_[at.node].count; }

  Locus find(const int32_t* string, int64_t length) const {
    int32_t node = ROOT;
    for (int64_t done = 0; done < length;) {
      const int32_t child = child_of(node, string[done]);
      if (child == NONE) return {NONE, 0};
      const int64_t compared = std::min<int64_t>(nodes_[child].length, length - done);
      if (common(child, string + done, compared) < compared) return {NONE, 0};
      node = child, done += compared;
      if (compared < nodes_[child].length) return {child, int32_t(compared)};
    }
    return {node, nodes_[node].length};
  }

  template <class Add>
  void followers(Locus at, int64_t least, Add add) const {
    const Node& node = nodes_[at.node];
    if (at.along < node.length) {
      if (node.count >= least) add(token(node.edge + at.along), node.count, Locus{at.node, at.along + 1});
      return;
    }
    for (int32_t child = node.first; child != NONE; child = nodes_[child].next)
      if (nodes_[child].count >= least) add(token(nodes_[child].edge), nodes_[child].count, Locus{child, 1});
  }

 private:
  static constexpr uint64_t EMPTY = ~uint64_t(0);

  int64_t dropped_ = 0, next_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_;
  std::vector<uint64_t> keys_;  // (node, token): open addressing, never more than half full
  std::vector<int32_t> values_;
  size_t filled_ = 0;

  void note(uint64_t change) { history = (history ^ change) * 0x9E3779B97F4A7C15ull + 1; }
  int64_t end() const { return dropped_ + int64_t(text.size()); }
  int32_t token(int64_t position) const { return text[position - dropped_]; }

  int64_t common(int32_t node, const int32_t* string, int64_t length) const {
    const int32_t* edge = text.data() + (nodes_[node].edge - dropped_);
    return std::mismatch(string, string + length, edge).first - string;
  }

  void insert(int64_t begin, int64_t length) {
    int32_t node = ROOT;
    ++nodes_[ROOT].count;
    for (int64_t done = 0; done < length;) {
      const int32_t* rest = text.data() + (begin - dropped_ + done);
      int32_t child = child_of(node, *rest);
      if (child == NONE) {
        append(node, make(1, begin + done, int32_t(length - done)));
        return;
      }
      const int64_t equal = common(child, rest, std::min<int64_t>(nodes_[child].length, length - done));
      if (equal < nodes_[child].length) child = split(node, child, int32_t(equal));
      ++nodes_[child].count;
      nodes_[child].edge = begin + done;  // the edge lies in the latest text through it
      node = child, done += equal;
    }
  }

  int32_t split(int32_t parent, int32_t node, int32_t along) {
    const int32_t upper = make(nodes_[node].count, nodes_[node].edge, along);
    replace(parent, node, upper);
    nodes_[node].edge += along, nodes_[node].length -= along;
    append(upper, node);
    return upper;
  }

  void remove(int64_t begin, int64_t length) {
    int32_t parent = NONE, node = ROOT;
    --nodes_[ROOT].count;
    for (int64_t done = 0; done < length;) {
      const int32_t child = child_of(node, token(begin + done));
      if (!--nodes_[child].count) {
        unlink(node, child);
        release(child);
        break;
      }
      parent = node, node = child, done += nodes_[child].length;
    }
    const int32_t only = nodes_[node].first;
    if (parent == NONE || only == NONE || only != nodes_[node].last || nodes_[only].count != nodes_[node].count) return;
    const int32_t along = nodes_[node].length;  // the same text is the latest through both
    unlink(node, only);
    nodes_[only].edge -= along, nodes_[only].length += along;
    replace(parent, node, only);
    free_.push_back(node);
  }

  void release(int32_t top) {
    std::vector<int32_t> waiting{top};
    while (!waiting.empty()) {
      const int32_t node = waiting.back();
      waiting.pop_back();
      for (int32_t child = nodes_[node].first; child != NONE; child = nodes_[child].next) {
        erase(key(node, token(nodes_[child].edge)));
        waiting.push_back(child);
      }
      free_.push_back(node);
    }
  }

  int32_t make(int64_t count, int64_t edge, int32_t length) {
    int32_t node = int32_t(nodes_.size());
    if (free_.empty()) nodes_.emplace_back();
    else node = free_.back(), free_.pop_back();
    nodes_[node] = Node{count, edge, length};
    return node;
  }

  void append(int32_t parent, int32_t child) {
    Node &above = nodes_[parent], &below = nodes_[child];
    below.before = above.last, below.next = NONE;
    (above.last == NONE ? above.first : nodes_[above.last].next) = child;
    above.last = child;
    put(key(parent, token(below.edge)), child);
  }

  // Put a node in the place of another among its siblings; their edges begin with the same token.
  void replace(int32_t parent, int32_t old, int32_t node) {
    const int32_t before = nodes_[old].before, next = nodes_[old].next;
    nodes_[node].before = before, nodes_[node].next = next;
    (before == NONE ? nodes_[parent].first : nodes_[before].next) = node;
    (next == NONE ? nodes_[parent].last : nodes_[next].before) = node;
    put(key(parent, token(nodes_[old].edge)), node);
  }

  void unlink(int32_t parent, int32_t child) {
    const int32_t before = nodes_[child].before, next = nodes_[child].next;
    (before == NONE ? nodes_[parent].first : nodes_[before].next) = next;
    (next == NONE ? nodes_[parent].last : nodes_[next].before) = before;
    erase(key(parent, token(nodes_[child].edge)));
  }

  static uint64_t key(int32_t node, int32_t token) { return uint64_t(uint32_t(node)) << 32 | uint32_t(token); }

  size_t slot_of(uint64_t key) const {
    return size_t((key ^ key >> 29) * 0x9E3779B97F4A7C15ull >> 20) & (keys_.size() - 1);
  }

  size_t where(uint64_t wanted) const {
    size_t slot = slot_of(wanted);
    while (keys_[slot] != EMPTY && keys_[slot] != wanted) slot = (slot + 1) & (keys_.size() - 1);
    return slot;
  }

  int32_t child_of(int32_t node, int32_t token) const {
    const size_t slot = where(key(node, token));
    return keys_[slot] == EMPTY ? NONE : values_[slot];
  }

  void put(uint64_t wanted, int32_t value) {
    size_t slot = where(wanted);
    if (keys_[slot] == EMPTY) {
      if (2 * ++filled_ > keys_.size()) {
        std::vector<uint64_t> keys(2 * keys_.size(), EMPTY);
        std::vector<int32_t> values(2 * values_.size());
        keys.swap(keys_), values.swap(values_);
        for (size_t i = 0; i < keys.size(); ++i)
          if (keys[i] != EMPTY) {
            const size_t at = where(keys[i]);
            keys_[at] = keys[i], values_[at] = values[i];
          }
        slot = where(wanted);
      }
      keys_[slot] = wanted;
    }
    values_[slot] = value;
  }

  void erase(uint64_t gone) {
    const size_t mask = keys_.size() - 1;
    size_t hole = where(gone);
    if (keys_[hole] == EMPTY) return;
    for (size_t slot = (hole + 1) & mask; keys_[slot] != EMPTY; slot = (slot + 1) & mask) {
      if (((slot - slot_of(keys_[slot])) & mask) < ((slot - hole) & mask)) continue;  // stands after its first choice
      keys_[hole] = keys_[slot], values_[hole] = values_[slot];
      hole = slot;
    }
    keys_[hole] = EMPTY;
    --filled_;
  }
};

// -- continuations of the suffixes of a text ------------------------------------------------------

// Occurrences of a string: in complete windows, and before these positions of the text's open end.
struct Spot {
  Locus windows;
  Range ends;
};

struct Suffixes {
  double factor, offset, least;
  Limits limits;
};

constexpr double NEARLY_WHOLE = 1e-6;

void search(const Trie& trie, const std::vector<int32_t>& tail, const std::vector<int32_t>& ending,
            const Suffixes& settings, Tree& best, Tree& tree, double& best_score) {
  std::vector<int32_t> pool;
  struct Match {
    int64_t length, seen;
    Spot spot;
  };
  std::vector<Match> matches;
  for (size_t i = 1; i <= tail.size(); ++i) pool.push_back(int32_t(i));
  Range ends{0, int64_t(pool.size())};
  const int64_t longest = std::min<int64_t>(trie.window - 1, int64_t(ending.size()));
  for (int64_t length = 1; length <= longest; ++length) {
    const int32_t first = ending[ending.size() - length];
    const int64_t begin = int64_t(pool.size());
    for (int64_t i = ends.begin; i < ends.end; ++i)
      if (pool[i] >= length && tail[pool[i] - length] == first) pool.push_back(pool[i]);
    ends = {begin, int64_t(pool.size())};
    const Locus windows = trie.find(ending.data() + (ending.size() - length), length);
    const int64_t seen = ends.end - ends.begin + (windows.node == NONE ? 0 : trie.count(windows));
    if (seen <= int64_t(!tail.empty())) break;  // only the end of the text itself
    matches.push_back({length, seen, {windows, ends}});
  }
  for (auto match = matches.rbegin(); match != matches.rend(); ++match) {
    const double budget = settings.factor * double(match->length) + settings.offset + NEARLY_WHOLE;
    Limits limits = settings.limits;
    if (budget < 1) continue;
    if (budget < double(limits.drafted)) limits.drafted = int64_t(budget);
    limits.depth = std::min(limits.depth, trie.window - match->length);
    if (limits.drafted < 1 || limits.depth < 1) continue;
    if (double(std::min(limits.drafted, limits.depth)) <= best_score) continue;  // a level sums to at most one
    const int64_t seen = match->seen;
    auto followers = [&](const Spot& spot, std::vector<Follower<Spot>>& found) {
      struct Late {
        int32_t token;
        std::vector<int32_t> at;
      };
      std::vector<Late> late;
      int64_t most = 0;
      for (int64_t i = spot.ends.begin; i < spot.ends.end; ++i) {
        if (pool[i] >= int64_t(tail.size())) continue;
        const int32_t token = tail[pool[i]];
        auto group = std::find_if(late.begin(), late.end(), [&](const Late& l) { return l.token == token; });
        if (group == late.end()) group = late.insert(group, {token, {}});
        group->at.push_back(pool[i] + 1);
        most = std::max(most, int64_t(group->at.size()));
      }
      auto keep = [&](int32_t token, int64_t count, Locus windows, const std::vector<int32_t>* at) {
        if (double(count) / double(seen) < settings.least) return;
        const int64_t begin = int64_t(pool.size());
        if (at) pool.insert(pool.end(), at->begin(), at->end());
        found.push_back({token, count, {windows, {begin, int64_t(pool.size())}}});
      };
      if (spot.windows.node != NONE)
        trie.followers(spot.windows, int64_t(settings.least * double(seen)) - 1 - most,
                       [&](int32_t token, int64_t count, Locus windows) {
          auto group = std::find_if(late.begin(), late.end(), [&](const Late& l) { return l.token == token; });
          if (group == late.end()) return keep(token, count, windows, nullptr);
          keep(token, count + int64_t(group->at.size()), windows, &group->at);
          late.erase(group);
        });
      for (auto& l : late) keep(l.token, int64_t(l.at.size()), {NONE, 0}, &l.at);
    };
    best_first(match->spot, limits, followers, [](const Follower<Spot>&, int64_t) { return Order{}; }, tree);
    const double score = double(tree.counts) / double(seen);
    if (score > best_score) {
      best_score = score;
      std::swap(best, tree);
    }
  }
}

// Index of the first of the sorted places that does not sort before the string, or with `beyond` of the first after
// all that begin with it.
int64_t first_place(const int32_t* tokens, const int32_t* places, int64_t low, int64_t high, int64_t size,
                    const int32_t* string, int64_t length, bool beyond) {
  while (low < high) {
    const int64_t middle = (low + high) / 2, place = places[middle];
    if (place < 0 || place >= size) return DAMAGED;
    const int64_t common = std::min(length, size - place);
    const auto [a, b] = std::mismatch(string, string + common, tokens + place);
    const bool equal = a == string + length;
    const bool less = !equal && (a == string + common || *b < *a);
    if (less || (beyond && equal)) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace

extern "C" {

void* treespec_trie_new(int64_t window) { return new Trie(window); }
void treespec_trie_delete(Trie* trie) { delete trie; }
void treespec_trie_read(Trie* trie, const int32_t* tokens, int64_t count) { trie->read(tokens, count); }
void treespec_trie_finish(Trie* trie) { trie->finish(); }
void treespec_trie_drop(Trie* trie, int64_t count) { trie->drop(count); }
int64_t treespec_trie_nodes(const Trie* trie) { return trie->size(); }
int64_t treespec_trie_slots(const Trie* trie) { return trie->slots(); }
int64_t treespec_trie_open(const Trie* trie) { return trie->open(); }
int64_t treespec_trie_history(const Trie* trie) { return int64_t(trie->history); }
int64_t treespec_trie_length(const Trie* trie) { return int64_t(trie->text.size()); }
const int32_t* treespec_trie_text(const Trie* trie) { return trie->text.data(); }

int64_t treespec_trie_count(const Trie* trie, int32_t node) { return trie->count({node, 0}); }

void treespec_trie_find(const Trie* trie, const int32_t* string, int64_t length, int32_t* locus) {
  const Locus found = trie->find(string, length);
  locus[0] = found.node, locus[1] = found.along;
}

// Rows of token, count, node and place along its edge; returns how many there are, of which `room` are written.
int64_t treespec_trie_followers(const Trie* trie, int32_t node, int32_t along, int64_t least, int64_t* rows,
                                int64_t room) {
  int64_t found = 0;
  trie->followers({node, along}, least, [&](int32_t token, int64_t count, Locus at) {
    if (found < room) {
      int64_t* row = rows + 4 * found;
      row[0] = token, row[1] = count, row[2] = at.node, row[3] = at.along;
    }
    ++found;
  });
  return found;
}

// The tree of `SuffixTree`, in parents and tokens; returns the number of draft tokens.
int64_t treespec_suffixes(const Trie* trie, const Trie* past, const int32_t* ahead, int64_t ahead_count, double factor,
                          double offset, double least, int64_t depth, int64_t drafted, int64_t branching,
                          int32_t* parents, int32_t* tokens) {
  const Suffixes settings{factor, offset, least, {depth, drafted, branching}};
  const int64_t longest = std::max(trie->window, past ? past->window : 0), length = int64_t(trie->text.size());
  std::vector<int32_t> ending(trie->text.end() - std::min(longest, length), trie->text.end());
  std::vector<int32_t> tail(trie->text.begin() + trie->open(), trie->text.end());
  ending.insert(ending.end(), ahead, ahead + ahead_count);
  tail.insert(tail.end(), ahead, ahead + ahead_count);
  std::vector<int32_t> other(2 * (drafted + 1));
  Tree best{parents, tokens}, tree{other.data(), other.data() + drafted + 1};
  double score = 0;
  search(*trie, tail, ending, settings, best, tree, score);
  if (past) search(*past, {}, ending, settings, best, tree, score);
  best.parents[0] = NONE;
  if (best.parents != parents) {
    std::copy_n(best.parents, best.drafted + 1, parents);
    std::copy_n(best.tokens, best.drafted, tokens);
  }
  return best.drafted;
}

// The tree of what followed these places: more frequent continuations first, then shorter ones, then the one whose
// last place is later.
int64_t treespec_places(const int32_t* text, int64_t length, const int32_t* places, int64_t count, int64_t depth,
                        int64_t drafted, int64_t branching, int32_t* parents, int32_t* tokens) {
  Places all(text, length, places, count);
  Tree tree{parents, tokens};
  best_first(all.all(), {depth, drafted, branching},
             [&](const Range& range, std::vector<Follower<Range>>& found) { all.followers(range, found); },
             [&](const Follower<Range>& f, int64_t depth) { return Order{depth, -int64_t(all.last(f.at))}; }, tree);
  return tree.drafted;
}

// The same for places sorted by what follows them, of equally frequent continuations the shorter one first, then the
// smaller token.
int64_t treespec_sorted_places(const int32_t* text, int64_t size, const int32_t* places, int64_t count, int64_t depth,
                               int64_t drafted, int64_t branching, int32_t* parents, int32_t* tokens) {
  struct Sorted {
    Range range;
    int64_t along;
  };
  auto followers = [&](const Sorted& at, std::vector<Follower<Sorted>>& found) {
    auto token = [&](int64_t i) {
      const int64_t place = places[i] + at.along;
      return 0 <= place && place < size ? text[place] : END;
    };
    for (int64_t begin = at.range.begin, end; begin < at.range.end; begin = end) {
      int64_t step = 1;  // gallop to the end of the places with this token
      while (begin + step < at.range.end && token(begin + step) == token(begin)) step *= 2;
      int64_t low = begin + step / 2 + 1, high = std::min(begin + step, at.range.end);
      if (step == 1) low = begin + 1;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (token(middle) == token(begin)) low = middle + 1;
        else high = middle;
      }
      end = low;
      if (token(begin) != END) found.push_back({token(begin), end - begin, {{begin, end}, at.along + 1}});
    }
  };
  Tree tree{parents, tokens};
  best_first(Sorted{{0, count}, 0}, {depth, drafted, branching}, followers,
             [](const Follower<Sorted>& f, int64_t depth) { return Order{depth, f.token}; }, tree);
  return tree.drafted;
}

// The longest suffix of a string, of at least `shortest` tokens, that begins some of the sorted places, and where;
// DAMAGED if a place lies outside the text.
int64_t treespec_longest(const int32_t* text, const int32_t* places, int64_t size, const int32_t* ending,
                         int64_t length, int64_t shortest, int64_t* range) {
  int64_t low = shortest - 1, high = length;
  range[0] = range[1] = 0;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    const int32_t* string = ending + length - middle;
    const int64_t first = first_place(text, places, 0, size, size, string, middle, false);
    const int64_t last = first < 0 ? DAMAGED : first_place(text, places, first, size, size, string, middle, true);
    if (last < 0) return DAMAGED;
    if (first < last) low = middle, range[0] = first, range[1] = last;
    else high = middle - 1;
  }
  return range[0] < range[1] ? low : 0;
}

}  // extern "C"
