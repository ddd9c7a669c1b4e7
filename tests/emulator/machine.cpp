// SPDX-License-Identifier: Apache-2.0
#include "emulator/machine.h"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>

namespace flashmask::emulator {

Index threadIdx, blockIdx, gridDim;

namespace {

constexpr std::size_t kStackBytes = std::size_t{128} << 10, kSharedAlignment = 1024;
constexpr unsigned kMostYields = 50'000'000;

[[noreturn]] void enter_another();

struct Copy {
  std::uint32_t to;
  const void* from;  // nullptr: zeros
  std::size_t bytes;
};

using Group = std::vector<Copy>;
using Work = std::vector<std::function<void()>>;

/// What a thread has asked for: not yet committed, and in committed groups.
struct Requests {
  Work open;
  std::deque<Work> groups;
};

struct Lane {
  std::jmp_buf place;
  bool started = false, done = false;
  const unsigned* awaited = nullptr;  // a count of meetings or barriers,
  unsigned seen = 0;                  // and what it was when this lane arrived
  Group open;
  std::vector<Group> groups;
  std::array<Requests, 2> asked;
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);

  bool can_run() const { return !done && (awaited == nullptr || *awaited != seen); }
};

struct Warp {
  std::array<void*, 32> operands;
  const void* operation = nullptr;
  unsigned arrived = 0, meetings = 0;
};

struct Barrier {
  unsigned arrived = 0, passed = 0;
  bool any = false, any_of_last = false;
};

/// A barrier in shared memory.
struct Counter {
  int expected = 0, arrived = 0, bytes = 0;
  unsigned phases = 0;
  std::vector<int> passed = {};  // the last phase that each lane has waited for: a warp's lanes pass it together

  int last_passed(unsigned warp) const {
    const auto first = passed.begin() + 32 * static_cast<int>(warp);
    return *std::max_element(first, first + 32);
  }

  void settle() {
    if (arrived != expected || bytes != 0) return;
    arrived = 0;
    ++phases;
  }
};

/// One block as it runs.
struct Block {
  const Launch* launch = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  unsigned current = 0;
  unsigned starved = ~0U;  // a warp, in blocks whose warps have roles
  std::array<Barrier, 16> barriers;
  std::map<std::uint32_t, Counter> counters;
  Work copies;  // of the copy engine, not yet done
  std::mt19937 random;
  unsigned yields = 0;
  std::string error;
  ucontext_t main;
};

Block* block = nullptr;

/// Gives up on the block. Whatever fibers held is lost.
[[noreturn]] void fail(const std::string& why) {
  block->error = "thread " + std::to_string(block->current) + " of block " + std::to_string(blockIdx.x) + ": " + why;
  setcontext(&block->main);
  std::abort();
}

void begin_lane() {
  (*block->kernel)();
  block->lanes[block->current].done = true;
  enter_another();
}

/// Makes a context that begins a lane. Contexts point into themselves and cannot be copied.
void begin(unsigned number, ucontext_t& context) {
  block->current = number;
  threadIdx.x = number;
  Lane& lane = block->lanes[number];
  lane.started = true;
  getcontext(&context);
  context.uc_stack.ss_sp = lane.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, begin_lane, 0);
}

[[noreturn]] void enter(unsigned number) {
  if (!block->lanes[number].started) {
    ucontext_t context;
    begin(number, context);
    setcontext(&context);
  }
  block->current = number;
  threadIdx.x = number;
  _longjmp(block->lanes[number].place, 1);
}

/// Does one of the copy engine's copies, drawn at random.
void do_a_copy() {
  Work& copies = block->copies;
  std::swap(copies[block->random() % copies.size()], copies.back());
  const auto work = std::move(copies.back());
  copies.pop_back();
  work();
}

/// A lane that can run: mostly of the same warp, else of one drawn at random; of the starved warp only where there is
/// no other. The number of lanes where there is none.
unsigned find_lane() {
  const auto count = static_cast<unsigned>(block->lanes.size());
  const unsigned first = block->current / 32 * 32;
  const auto of_warp = [](unsigned warp) {
    for (unsigned at = 32 * warp; at < 32 * warp + 32; ++at)
      if (block->lanes[at].can_run()) return at;
    return static_cast<unsigned>(block->lanes.size());
  };
  const bool stays = block->counters.empty() || (block->random() % 8 != 0 && first / 32 != block->starved);
  for (unsigned i = 1; stays && i <= 32; ++i)
    if (const unsigned lane = first + (block->current + i) % 32; block->lanes[lane].can_run()) return lane;
  const auto warps = static_cast<unsigned>(block->warps.size());
  const unsigned offset = static_cast<unsigned>(block->random()) % warps;
  for (unsigned i = 0; i < warps; ++i)
    if (const unsigned warp = (offset + i) % warps; warp != block->starved)
      if (const unsigned lane = of_warp(warp); lane < count) return lane;
  return block->starved < warps ? of_warp(block->starved) : count;
}

/// Says what a lane waits for.
std::string awaited_by(const Lane& lane) {
  for (std::size_t i = 0; i < block->barriers.size(); ++i)
    if (const Barrier& barrier = block->barriers[i]; lane.awaited == &barrier.passed)
      return " waits at barrier " + std::to_string(i) + ", where " + std::to_string(barrier.arrived) + " have arrived";
  for (const auto& [address, counter] : block->counters)
    if (lane.awaited == &counter.phases)
      return " waits for the barrier at " + std::to_string(address) + ", where " + std::to_string(counter.arrived) +
             " of " + std::to_string(counter.expected) + " have arrived and " + std::to_string(counter.bytes) +
             " bytes are missing";
  return " waits for lanes of its warp";
}

[[noreturn]] void enter_another() {
  const auto count = static_cast<unsigned>(block->lanes.size());
  if (!block->copies.empty() && block->random() % 4 == 0) do_a_copy();
  unsigned next = find_lane();
  for (; next == count && !block->copies.empty(); next = find_lane()) do_a_copy();
  if (next < count) enter(next);
  std::string waiting;
  for (unsigned lane = 0; lane < count; ++lane)
    if (!block->lanes[lane].done && (waiting.empty() || lane % 32 == 0))
      waiting += (waiting.empty() ? "" : ", ") + std::to_string(lane) + awaited_by(block->lanes[lane]);
  if (!waiting.empty()) fail("no thread can run: " + waiting);
  setcontext(&block->main);
  std::abort();
}

/// Until *count changes.
[[gnu::noinline]] void await(const unsigned* count) {
  Lane& own = block->lanes[block->current];
  own.awaited = count;
  own.seen = *count;
  if (_setjmp(own.place) == 0) enter_another();
  block->lanes[block->current].awaited = nullptr;
}

void perform(const Copy& copy) {
  std::byte* to = block->shared + copy.to;
  if (copy.from == nullptr) {
    std::memset(to, 0, copy.bytes);
  } else {
    std::memcpy(to, copy.from, copy.bytes);
  }
}

void check_shared(std::uint32_t address, std::size_t bytes) {
  if (address % bytes != 0) fail("shared memory at " + std::to_string(address) + " is not aligned");
  if (address + bytes > block->launch->shared_bytes)
    fail("shared memory ends before " + std::to_string(address + bytes));
}

void check_readable(const void* source, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(source);
  if (reinterpret_cast<std::uintptr_t>(begin) % bytes != 0) fail("the source of a copy is not aligned");
  for (const auto& range : block->launch->readable)
    if (begin >= range[0] && begin + bytes <= range[1]) return;
  if (!block->launch->readable.empty()) fail("a copy reads where there is nothing");
}

void run_block(const Launch& launch, const std::function<void()>& kernel, unsigned number) {
  Block own;
  own.launch = &launch;
  own.kernel = &kernel;
  own.memory.assign(launch.shared_bytes + kSharedAlignment, std::byte{0xFF});
  own.shared = own.memory.data();
  while (reinterpret_cast<std::uintptr_t>(own.shared) % kSharedAlignment != 0) ++own.shared;
  own.lanes.resize(launch.threads);
  own.warps.resize(launch.threads / 32);
  own.random.seed(launch.seed + number);
  block = &own;
  const unsigned x = launch.blocks, y = launch.blocks_y;
  blockIdx = {number % x, number / x % y, number / x / y};
  gridDim = {x, y, launch.blocks_z};
  ucontext_t first;
  begin(static_cast<unsigned>(own.random()) % launch.threads, first);
  swapcontext(&own.main, &first);
  if (!own.error.empty()) throw std::runtime_error(own.error);
}

}  // namespace

void run(const Launch& launch, const std::function<void()>& kernel) {
  for (unsigned number = 0; number < launch.blocks * launch.blocks_y * launch.blocks_z; ++number)
    run_block(launch, kernel, number);
}

void await_block() { await_threads(0, static_cast<unsigned>(block->lanes.size())); }

namespace {

/// Returns whether the thread is the last of those that a barrier waits for.
bool arrives_last(unsigned number, unsigned threads) {
  if (number >= block->barriers.size()) fail("there is no barrier " + std::to_string(number));
  Barrier& barrier = block->barriers[number];
  if (++barrier.arrived != threads) return false;
  barrier.arrived = 0;
  ++barrier.passed;
  barrier.any_of_last = std::exchange(barrier.any, false);
  return true;
}

}  // namespace

void await_threads(unsigned number, unsigned threads) {
  if (!arrives_last(number, threads)) await(&block->barriers[number].passed);
}

void arrive_at_threads(unsigned number, unsigned threads) { arrives_last(number, threads); }

bool any_of_threads(unsigned number, unsigned threads, bool own) {
  Barrier& barrier = block->barriers.at(number);
  barrier.any |= own;
  await_threads(number, threads);
  return barrier.any_of_last;
}

namespace {

Counter& counter_at(std::uint32_t address) {
  const auto found = block->counters.find(address);
  if (found == block->counters.end()) fail("there is no barrier in shared memory at " + std::to_string(address));
  return found->second;
}

/// Lets others run, now and then.
void pause() {
  if (block->random() % 16 == 0) yield();
}

}  // namespace

[[gnu::noinline]] void yield() {
  if (++block->yields == kMostYields) fail("threads look again and again at what nobody changes");
  // One that looks again and again can always run: what it waits for may be the starved warp's.
  if (block->starved < block->warps.size() && block->yields % 256 == 0)
    block->starved = static_cast<unsigned>(block->random() % block->warps.size());
  Lane& own = block->lanes[block->current];
  own.awaited = nullptr;
  if (_setjmp(own.place) == 0) enter_another();
}

void init_counter(std::uint32_t address, int arrivals) {
  check_shared(address, 8);
  if (block->counters.empty()) block->starved = static_cast<unsigned>(block->random() % block->warps.size());
  block->counters[address] = {.expected = arrivals};
}

void arrive_at_counter(std::uint32_t address, int bytes) {
  Counter& counter = counter_at(address);
  counter.bytes += bytes;
  if (++counter.arrived > counter.expected) fail("more threads arrive at a barrier than it expects");
  counter.settle();
  pause();
}

void expect_at_counter(std::uint32_t address, int bytes) { counter_at(address).bytes += bytes; }

void await_counter(std::uint32_t address, std::uint32_t parity) {
  Counter& counter = counter_at(address);
  counter.passed.resize(block->lanes.size(), -1);
  int& passed = counter.passed[block->current];
  const int next = passed + 1 + static_cast<int>((static_cast<unsigned>(passed) + 1) % 2 == parity);
  if (counter.phases % 2 == parity && counter.last_passed(block->current / 32) < next) await(&counter.phases);
  counter_at(address).passed[block->current] = next;
}

void copy_later(const std::function<void()>& work, std::uint32_t address, int bytes) {
  const auto bring = [work, address, bytes] {
    work();
    Counter& counter = counter_at(address);
    counter.bytes -= bytes;
    counter.settle();
  };
  if (block->launch->copies == Copies::early) return bring();
  block->copies.push_back(bring);
}

void ask(Asked kind, std::function<void()> work) {
  if (block->launch->copies == Copies::early) return work();
  block->lanes[block->current].asked[static_cast<std::size_t>(kind)].open.push_back(std::move(work));
}

void commit(Asked kind) {
  Requests& asked = block->lanes[block->current].asked[static_cast<std::size_t>(kind)];
  asked.groups.push_back(std::move(asked.open));
  asked.open.clear();
}

void await_asked(Asked kind, int pending) {
  pause();
  auto& groups = block->lanes[block->current].asked[static_cast<std::size_t>(kind)].groups;
  while (groups.size() > static_cast<std::size_t>(pending)) {
    for (const auto& work : groups.front()) work();
    groups.pop_front();
  }
}

void refuse(const std::string& why) { fail(why); }

void* shared_memory(std::size_t bytes) {
  if (bytes > block->launch->shared_bytes) fail("the block has less shared memory than it uses");
  return block->shared;
}

std::uint32_t shared_address(const void* pointer) {
  const auto distance = static_cast<const std::byte*>(pointer) - block->shared;
  if (distance < 0 || distance > static_cast<std::ptrdiff_t>(block->launch->shared_bytes))
    fail("an address of shared memory is asked for where there is none");
  return static_cast<std::uint32_t>(distance);
}

void read_shared(void* to, std::uint32_t address, std::size_t bytes) {
  check_shared(address, bytes);
  std::memcpy(to, block->shared + address, bytes);
}

void write_shared(std::uint32_t address, const void* from, std::size_t bytes) {
  check_shared(address, bytes);
  std::memcpy(block->shared + address, from, bytes);
}

void copy(std::uint32_t to, const void* source, std::size_t bytes) {
  check_shared(to, bytes);
  if (source != nullptr) check_readable(source, bytes);
  const Copies when = block->launch->copies;
  const bool late = when == Copies::late || (when == Copies::either && block->random() % 2 == 0);
  if (!late) return perform({to, source, bytes});
  std::memset(block->shared + to, 0xFF, bytes);
  block->lanes[block->current].open.push_back({to, source, bytes});
}

void commit_copies() {
  Lane& lane = block->lanes[block->current];
  lane.groups.push_back(std::move(lane.open));
  lane.open.clear();
}

void await_copies(int pending) {
  auto& groups = block->lanes[block->current].groups;
  while (groups.size() > static_cast<std::size_t>(pending)) {
    for (const Copy& copy : groups.front()) perform(copy);
    groups.erase(groups.begin());
  }
}

bool meet(void* own, const void* what, std::array<void*, 32>*& all) {
  Warp& warp = block->warps[block->current / 32];
  if (warp.arrived != 0 && warp.operation != what) fail("lanes of one warp meet at different instructions");
  warp.operation = what;
  warp.operands[block->current % 32] = own;
  all = &warp.operands;
  if (++warp.arrived == 32) return true;
  await(&warp.meetings);
  return false;
}

void release_warp() {
  Warp& warp = block->warps[block->current / 32];
  warp.arrived = 0;
  ++warp.meetings;
}

}  // namespace flashmask::emulator
