// Notes the ops of a capture, and counts replays, without the way into Python: op_watch.py.
//
// The same kernel for all ops as that of op_key.py, on the same dispatch key. The GIL is held while
// the frames of an op are noted, and released while it runs and while the driver is called.

// Python's headers come first.
#include <Python.h>
#if PY_VERSION_HEX < 0x030C0000  // It has no PyFrame_GetVar.
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#if __has_include(<c10/core/CachingDeviceAllocator.h>)
#include <c10/core/CachingDeviceAllocator.h>
#endif
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace c10 {
struct DeviceAllocator;  // Of PyTorch 2.9 or newer.
}

namespace py = pybind11;
using c10::DeviceType;
using c10::DispatchKey;

namespace {

// cuStreamGetCaptureInfo_v2 has no argument for edges.
using Query = int (*)(void*, int*, void*, void*, const uint64_t**, size_t*);
using QueryWithEdges = int (*)(void*, int*, void*, void*, const uint64_t**, const void**, size_t*);
constexpr int kActive = 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr int kInvalidated = 2;
constexpr uint64_t kNoNode = 0;  // Stands for the position of a capture that was invalidated.

struct Frame {
  PyObject* code;  // Owned. Frames themselves are not kept: they keep the user's variables alive.
  int instruction;
  PyObject* module;  // Owned: the one that the frame calls, or a weak reference; null if none.
  int outer;  // Index of the frame that called it; -1 for none.
};

struct Op {
  std::string name;  // Empty for a kernel that generated code launches.
  bool launches;
};

struct Call {
  int op;
  int frame = -1;  // The innermost.
  unsigned long thread;
  int waiting = -1;  // Of `waitings`, on other threads than the one that is recorded.
  int autograd_node = -1;
  uint64_t autograd_sequence = 0;
  uint64_t next_sequence;                     // Of autograd, on this thread, before the op.
  std::optional<uint64_t> next_sequence_end;  // And after it; none if the op failed.
  int start = 0, end = 0;                     // Numbers of positions.
  size_t first_use = 0, end_of_uses = 0;      // Of `uses_`.
};

// The memory of some tensors, which is not kept alive.
struct Storage {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // No other one gets its address.
  bool is_outside;  // The allocator's, and there before the first op that was seen to use it.
};

struct Use {
  int storage;
  bool is_written;
};

// What is the same for all logs.
struct Settings {
  const uintptr_t query;  // The driver's function, and whether it has an argument for edges.
  const bool with_edges;
  const std::unordered_set<std::string> launch_nothing;  // Names of ops.
  const py::function stream;   // The handle of the current stream of a device.
  const py::function waiting;  // What waits for this thread, which works for another.
  const py::object call_module;  // The code of `Module._call_impl`, or None.
  // Called with the thread that is recorded and the number of an op, before the op; returns the number
  // for which it is to be called next.
  const py::function look;
};

// Null without a GPU, where a PyTorch that is built with CUDA would raise.
const c10::impl::DeviceGuardImplInterface* device_guard() {
  if (!c10::impl::hasDeviceGuardImpl(DeviceType::CUDA)) return nullptr;
  auto guard = c10::impl::getDeviceGuardImpl(DeviceType::CUDA);
  return guard->deviceCount() > 0 ? guard : nullptr;
}

class Log {
 public:
  // `within`: the frame, or None, that runs the capture; those outside it are looked at once. Modules
  // that run already have no name.
  Log(std::shared_ptr<Settings> settings, int device, const py::object& within)
      : settings_(std::move(settings)),
        device_(DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)),
        guard_(device_guard()),
        home_(PyThread_get_thread_ident()), next_sequence_(at::sequence_number::peek()) {
    walk(nullptr);
    for (Site& site : sites_) {
      if (is_call_of_module(site.code)) running_.insert(site.frame);
    }
    auto is_within = [&within](const Site& site) { return (PyObject*)site.frame == within.ptr(); };
    auto found = std::find_if(sites_.begin(), sites_.end(), is_within);
    if (found == sites_.end()) return;
    for (auto site = sites_.begin(); site != found; ++site) outside_ = number_of(*site, outside_);
    within_ = within;
  }

  // The capture is over, and whatever the frame holds is dropped with it. It may take a while until
  // the log is read: modules must not live longer because of that.
  void close() {
    py::object within(std::move(within_));
    for (Frame& frame : frames_) {
      if (frame.module == nullptr) continue;
      PyObject* weak = PyWeakref_NewRef(frame.module, nullptr);
      if (weak == nullptr) {
        PyErr_Clear();
      } else {
        Py_DECREF(std::exchange(frame.module, weak));
      }
    }
  }

  // The last to drop a log may be an op that outlives the watch, without the GIL.
  ~Log() {
    py::gil_scoped_acquire acquired;
    for (const Frame& frame : frames_) {
      Py_DECREF(frame.code);
      Py_XDECREF(frame.module);
    }
    waitings_ = {};
    settings_ = {};
    within_ = {};
  }

  // With the GIL. What happens in Python here raises nothing into the program.
  std::pair<Call*, void*> begin(int op) {
    Call call{op};
    call.thread = PyThread_get_thread_ident();
    call.frame = innermost_frame(call.thread);
    if (call.thread != home_) call.waiting = waiting();
    if (auto node = torch::autograd::get_current_node()) {
      call.autograd_node = name_of(*node);
      call.autograd_sequence = node->sequence_nr();
    }
    call.next_sequence = at::sequence_number::peek();
    uint64_t number = begun_++;
    if (number >= looked_at_) look(number);
    void* stream = launches(op) ? current_stream() : nullptr;
    std::lock_guard lock(mutex_);
    calls_.push_back(call);
    return {&calls_.back(), stream};
  }

  bool launches(int op) const { return ops_[op].launches; }

  // The storages that a call is given, or makes (`is_made`).
  template <typename Values>
  void use(Call* call, const Values& each, bool is_made) {
    std::lock_guard lock(mutex_);
    size_t first = uses_.size();
    try {
      each([&](const at::Tensor& tensor, bool is_written) { use(tensor, is_written, is_made); });
    } catch (const std::exception&) {  // Of a tensor that answers for itself.
    }
    if (is_made) return;
    call->first_use = first;
    call->end_of_uses = uses_.size();
  }

  void use(const at::Tensor& tensor, bool is_written, bool is_made) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    if (tensor.device().type() != (guard_ == nullptr ? DeviceType::CPU : DeviceType::CUDA)) return;
    auto [known, is_new] = storage_numbers_.try_emplace(
        tensor.storage().unsafeGetStorageImpl(), static_cast<int>(storages_.size()));
    if (is_new) {
      auto& made = storages_.emplace_back(Storage{tensor.storage().getWeakStorageImpl(), false});
      // What another library has allocated can outlive its storage.
      auto deleter = c10::GetAllocator(tensor.device().type())->raw_deleter();
      made.is_outside = !is_made && deleter != nullptr &&
          tensor.storage().data_ptr().get_deleter() == deleter;
    }
    if (!is_made) uses_.push_back({known->second, is_written});
  }

  // By number, the addresses of the `StorageImpl` of storages outside that live.
  std::vector<std::pair<int, uintptr_t>> outside() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<int, uintptr_t>> result;
    for (size_t number = 0; number < storages_.size(); ++number) {
      const Storage& known = storages_[number];
      if (known.is_outside && !known.storage.expired()) {
        auto address = reinterpret_cast<uintptr_t>(known.storage._unsafe_get_target());
        result.emplace_back(static_cast<int>(number), address);
      }
    }
    return result;
  }

  // By call: the storages that it uses, and whether it writes them.
  std::vector<std::vector<std::pair<int, bool>>> uses() {
    std::lock_guard lock(mutex_);
    std::vector<std::vector<std::pair<int, bool>>> result;
    for (const Call& call : calls_) {
      auto& of_call = result.emplace_back();
      for (size_t at = call.first_use; at < call.end_of_uses; ++at) {
        of_call.emplace_back(uses_[at].storage, uses_[at].is_written);
      }
    }
    return result;
  }

  int op_of(const c10::OperatorHandle& op) {
    auto [known, is_new] = op_numbers_.try_emplace(&op.schema(), ops_.size());
    if (is_new) {
      const std::string& overload = op.schema().overload_name();
      op_named(op.schema().name() + (overload.empty() ? "" : "." + overload));
    }
    return known->second;
  }

  int op_named(std::string name) {
    bool launches = settings_->launch_nothing.count(name) == 0;
    ops_.push_back({std::move(name), launches});
    return static_cast<int>(ops_.size()) - 1;
  }

  // Without the GIL. The number of the position of a stream among those noted.
  int note(void* stream) {
    int status = 0;
    size_t count = 0;
    const uint64_t* nodes = nullptr;
    const void* edges = nullptr;
    uintptr_t query = settings_->query;
    int error = settings_->with_edges
        ? reinterpret_cast<QueryWithEdges>(query)(
              stream, &status, nullptr, nullptr, &nodes, &edges, &count)
        : reinterpret_cast<Query>(query)(stream, &status, nullptr, nullptr, &nodes, &count);
    if (error != 0 || status != kActive) {
      count = error == 0 && status == kInvalidated ? 1 : 0;
      nodes = &kNoNode;
    }
    std::lock_guard lock(mutex_);
    nodes_.insert(nodes_.end(), nodes, nodes + count);
    ends_.push_back(nodes_.size());
    noted_.push_back(reinterpret_cast<uintptr_t>(stream));
    return static_cast<int>(ends_.size()) - 1;
  }

  int note_current() { return note_released(current_stream()); }

  int note_released(void* stream) {
    py::gil_scoped_release released;
    return note(stream);
  }

  // A function that launches a kernel of generated code, called as that of a vectorcall.
  PyObject* launch(
      PyObject* original, PyObject* const* args, size_t count, PyObject* names) {
    if (launch_ < 0) launch_ = op_named("");
    auto [call, stream] = begin(launch_);
    size_t given = PyVectorcall_NARGS(count) + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
    use(call, [&](auto&& add) {
      for (size_t at = 0; at < given; ++at) {
        if (THPVariable_Check(args[at])) add(THPVariable_Unpack(args[at]), false);
      }
    }, false);
    int start = note_released(stream);
    PyObject* result = PyObject_Vectorcall(original, args, count, names);
    py::error_scope error;  // What it raises, while the driver is asked.
    end(call, start, note_released(stream), std::nullopt);
    return result;
  }

  void end(Call* call, int start, int end, std::optional<uint64_t> next_sequence) {
    std::lock_guard lock(mutex_);
    call->start = start;
    call->end = end;
    call->next_sequence_end = next_sequence;
  }

  py::list calls() {
    std::deque<Call> calls;
    {
      std::lock_guard lock(mutex_);
      calls = calls_;
    }
    py::list result;  // Making Python objects may run the garbage collector, and so an op.
    for (const Call& call : calls) {
      result.append(py::make_tuple(
          ops_[call.op].name, call.frame, call.thread, call.waiting, call.autograd_node,
          call.autograd_sequence, call.next_sequence, call.next_sequence_end, call.start,
          call.end));
    }
    return result;
  }

  // Each after the one that called it.
  py::list frames() {
    py::list result;
    for (size_t number = 0; number < frames_.size(); ++number) {
      const Frame frame = frames_[number];
      auto module = py::reinterpret_borrow<py::object>(frame.module ? frame.module : Py_None);
      if (PyWeakref_Check(module.ptr())) module = module();  // None once it is gone.
      result.append(py::make_tuple(
          py::reinterpret_borrow<py::object>(frame.code), frame.instruction, module, frame.outer));
    }
    return result;
  }

  std::deque<std::string> autograd_nodes() { return node_names_; }
  std::vector<py::object> waitings() { return waitings_; }

  // The thread that is recorded, and the next sequence number there when the log began.
  std::pair<unsigned long, uint64_t> home() const { return {home_, next_sequence_}; }

  // The handle of the stream of each position.
  std::vector<uintptr_t> streams() {
    std::lock_guard lock(mutex_);
    return noted_;
  }

  std::vector<std::vector<uint64_t>> positions() {
    std::lock_guard lock(mutex_);
    std::vector<std::vector<uint64_t>> result;
    size_t begin = 0;
    for (size_t end : ends_) {
      result.emplace_back(nodes_.begin() + begin, nodes_.begin() + end);
      begin = end;
    }
    return result;
  }

 private:
  // A frame that runs; nothing is owned.
  struct Site {
    PyFrameObject* frame;
    PyObject* code;
    int instruction;
    PyObject* module;
    int number = -1;  // Of the `Frame`.
  };

  bool is_call_of_module(PyObject* code) const { return code == settings_->call_module.ptr(); }

  // The frames of this thread, outermost first, into `sites_`: no further than to `last`. Whether it
  // was there.
  bool walk(PyObject* last) {
    sites_.clear();
    PyFrameObject* frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    bool is_last = false;
    while (frame != nullptr && !is_last) {
      is_last = reinterpret_cast<PyObject*>(frame) == last;
      PyCodeObject* code = PyFrame_GetCode(frame);
      sites_.push_back({frame, reinterpret_cast<PyObject*>(code), PyFrame_GetLasti(frame), nullptr});
      PyFrameObject* outer = PyFrame_GetBack(frame);
      Py_DECREF(code);  // Frames that run keep their code, and are kept.
      Py_DECREF(frame);
      frame = outer;
    }
    Py_XDECREF(frame);
    std::reverse(sites_.begin(), sites_.end());
    return is_last;
  }

  // The `self` of a function.
  PyObject* self_of(PyFrameObject* frame) {
#if PY_VERSION_HEX < 0x030C0000
    PyObject* self = frame->f_frame->localsplus[0];
    return self != nullptr && PyCell_Check(self) ? PyCell_GET(self) : self;
#else
    static PyObject* name = PyUnicode_InternFromString("self");
    PyObject* self = PyFrame_GetVar(frame, name);
    if (self == nullptr) PyErr_Clear();
    Py_XDECREF(self);  // The frame keeps it.
    return self;
#endif
  }

  // Most frames are those of the last op, so each is first compared with the one at its place.
  int innermost_frame(unsigned long thread) {
    py::object over;  // Dropped at the end: that may run Python.
    PyObject* last = thread == home_ ? within_.ptr() : nullptr;
    bool is_within = walk(last) && last != nullptr;
    // It has returned, or is a generator that waits.
    if (last != nullptr && !is_within) over = std::move(within_);
    int outer = is_within ? outside_ : -1;
    bool is_known = outer == last_outside_;
    last_outside_ = outer;
    for (size_t at = 0; at < sites_.size(); ++at) {
      Site& site = sites_[at];
      if (is_call_of_module(site.code) && !(thread == home_ && running_.count(site.frame) != 0)) {
        site.module = self_of(site.frame);
      }
      is_known = is_known && at < last_.size() && last_[at].code == site.code &&
          last_[at].instruction == site.instruction && last_[at].module == site.module;
      outer = site.number = is_known ? last_[at].number : number_of(site, outer);
    }
    last_.swap(sites_);
    return outer;
  }

  int number_of(const Site& site, int outer) {
    auto [known, is_new] = frame_numbers_.try_emplace(
        {site.code, site.instruction, site.module, outer}, static_cast<int>(frames_.size()));
    if (is_new) {
      Py_INCREF(site.code);
      Py_XINCREF(site.module);
      frames_.push_back({site.code, site.instruction, site.module, outer});
    }
    return known->second;
  }

  // Once for each backward, because all of its ops wait for the same.
  int waiting() {
    int task = torch::autograd::get_current_graph_task_id();
    if (task < 0 || task != waiting_task_) {
      try {
        waitings_.push_back(settings_->waiting(home_));
        waiting_number_ = static_cast<int>(waitings_.size()) - 1;
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("cgtool");
        return -1;
      }
      waiting_task_ = task;
    }
    return waiting_number_;
  }

  void look(uint64_t number) {
    looked_at_ = UINT64_MAX;  // Python may run other threads meanwhile.
    try {
      looked_at_ = settings_->look(home_, number).cast<uint64_t>();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("cgtool");
    }
  }

  int name_of(const torch::autograd::Node& node) {
    std::type_index type = typeid(node);
    auto known = node_numbers_.find(type);
    if (known != node_numbers_.end()) return known->second;
    node_names_.push_back(node.name());
    int number = static_cast<int>(node_names_.size()) - 1;
    // All functions in Python have one type.
    if (std::strstr(type.name(), "PyNode") == nullptr) node_numbers_.emplace(type, number);
    return number;
  }

  void* current_stream() {
    if (guard_ == nullptr) return asked_stream();  // there is no GPU
    auto [known, is_new] = streams_.try_emplace(guard_->getStream(device_).id(), nullptr);
    if (is_new) known->second = asked_stream();
    return known->second;
  }

  void* asked_stream() {
    try {
      return reinterpret_cast<void*>(settings_->stream(static_cast<int>(device_.index())).cast<uintptr_t>());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("cgtool");
      return nullptr;
    }
  }

  std::shared_ptr<Settings> settings_;
  const c10::Device device_;
  const c10::impl::DeviceGuardImplInterface* const guard_;
  const unsigned long home_;
  const uint64_t next_sequence_;

  // With the GIL.
  std::vector<py::object> waitings_;
  std::unordered_map<c10::StreamId, void*> streams_;  // What `stream` returned.
  std::deque<Op> ops_;
  std::unordered_map<const void*, int> op_numbers_;
  int launch_ = -1;  // The number of the op without a name.
  std::vector<Frame> frames_;
  py::object within_;
  int outside_ = -1;  // The innermost frame outside `within_`.
  std::vector<Site> sites_, last_;  // Of this op, and of the op before. Only compared.
  int last_outside_ = -1;           // The innermost frame outside `last_`.
  std::unordered_set<PyFrameObject*> running_;  // Calls of modules, when the log began.
  using FrameKey = std::tuple<PyObject*, int, PyObject*, int>;
  struct HashFrame {
    size_t operator()(const FrameKey& frame) const {
      auto [code, instruction, module, outer] = frame;
      size_t hash = (reinterpret_cast<size_t>(code) + reinterpret_cast<size_t>(module)) >> 4;
      return (hash * 1000003 + instruction) * 1000003 + outer;
    }
  };
  std::unordered_map<FrameKey, int, HashFrame> frame_numbers_;
  std::unordered_map<std::type_index, int> node_numbers_;  // Of autograd.
  std::deque<std::string> node_names_;
  int waiting_task_ = -1, waiting_number_ = -1;
  uint64_t begun_ = 0, looked_at_ = 0;  // Ops, and the number of the next one before which to `look`.

  // With the mutex, and never the GIL after it.
  std::mutex mutex_;
  std::deque<Call> calls_;
  std::deque<Storage> storages_;
  std::unordered_map<const c10::StorageImpl*, int> storage_numbers_;
  std::vector<Use> uses_;
  std::vector<uint64_t> nodes_;
  std::vector<size_t> ends_{0};  // Number 0 is that of calls that launch nothing.
  std::vector<uintptr_t> noted_{0};  // The handle of the stream of each position.
};

DispatchKey watched_key;
std::atomic<bool> is_watching{false};
std::shared_ptr<Log> current;  // With the GIL.

// A call of an op, from its beginning to its end.
class Watched {
 public:
  // `number_of` gives the op its number in a log.
  template <typename NumberOf>
  explicit Watched(NumberOf number_of) {
    {
      py::gil_scoped_acquire acquired;
      log_ = current;
      if (log_ == nullptr) return;
      int op = number_of(*log_);
      launches_ = log_->launches(op);
      std::tie(call_, stream_) = log_->begin(op);
    }
    if (launches_) start_ = log_->note(stream_);
  }

  // Before the call.
  void given(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    if (!launches_) return;
    const auto& arguments = op.schema().arguments();
    log_->use(call_, [&](auto&& add) {
      for (size_t at = 0; at < arguments.size(); ++at) {
        const auto* alias = arguments[at].alias_info();
        bool is_written = alias != nullptr && alias->isWrite();
        const c10::IValue& value = torch::jit::peek(stack, at, arguments.size());
        each_tensor(value, [&](const at::Tensor& tensor) { add(tensor, is_written); });
      }
    }, false);
  }

  void returned(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    if (launches_) {
      size_t count = op.schema().returns().size();
      log_->use(call_, [&](auto&& add) {
        for (size_t at = 0; at < count; ++at) {
          const c10::IValue& value = torch::jit::peek(stack, at, count);
          each_tensor(value, [&](const at::Tensor& tensor) { add(tensor, true); });
        }
      }, true);
    }
    returned();
  }

  void returned() { next_sequence_ = at::sequence_number::peek(); }

  ~Watched() {
    if (log_ == nullptr) return;
    log_->end(call_, start_, launches_ ? log_->note(stream_) : 0, next_sequence_);
  }

 private:
  template <typename Add>
  static void each_tensor(const c10::IValue& value, const Add& add) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) add(item.toTensor());
      }
    }
  }

  std::shared_ptr<Log> log_;
  Call* call_ = nullptr;
  void* stream_ = nullptr;
  bool launches_ = false;
  int start_ = 0;
  std::optional<uint64_t> next_sequence_;
};

// As in op_key.py.
bool is_composite(const c10::OperatorHandle& op, c10::DispatchKeySet below) {
  if (!op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd)) return false;
  DispatchKey key = below.highestPriorityTypeId();
  if (key == DispatchKey::BackendSelect) {
    DispatchKey next = below.remove(DispatchKey::BackendSelect).highestPriorityTypeId();
    if (next == DispatchKey::CPU || next == DispatchKey::CUDA) key = next;
  }
  return !op.hasKernelForDispatchKey(key) &&
      !op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd);
}

void kernel(
    const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto below = keys.remove(watched_key);
  if (!is_watching.load(std::memory_order_relaxed)) {
    // The watch has ended on another thread, which could not switch off the key of this one.
    c10::impl::tls_set_dispatch_key_included(watched_key, false);
    op.redispatchBoxed(below, stack);
  } else if (!below.has(DispatchKey::Python) && is_composite(op, below)) {
    op.redispatchBoxed(below, stack);
  } else {
    // Where modes and tensor subclasses come after the key (PyTorch 2.11), one of them may run the
    // op. The kernel for all ops cannot follow it: what it calls belongs to the op.
    c10::impl::ExcludeDispatchKeyGuard inside(watched_key);
    Watched watched([&op](Log& log) { return log.op_of(op); });
    watched.given(op, *stack);
    op.redispatchBoxed(below, stack);
    watched.returned(op, *stack);
  }
}

// `chain_of` of observe/frames.py: code and instruction of the frames whose files are not internal,
// innermost first; None if there is a file that `internal` does not have.
py::object chain_of(const py::object& innermost, const py::dict& internal, size_t most) {
  py::list chain;
  auto frame = py::reinterpret_borrow<py::object>(innermost);
  while (frame && !frame.is_none() && chain.size() < most) {
    auto current = reinterpret_cast<PyFrameObject*>(frame.ptr());
    auto code = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetCode(current)));
    auto file = reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename;
    PyObject* is_internal = PyDict_GetItemWithError(internal.ptr(), file);
    if (is_internal == nullptr) return py::none();
    if (is_internal != Py_True) chain.append(py::make_tuple(code, PyFrame_GetLasti(current)));
    frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
  }
  return py::tuple(chain);
}

// In place of a function or a method that launches kernels of generated code.
struct LaunchWatch {
  PyObject_HEAD;
  vectorcallfunc call;
  PyObject* original;  // Owned.
};

PyObject* watch_launch(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  auto original = reinterpret_cast<LaunchWatch*>(self)->original;
  std::shared_ptr<Log> log = current;
  if (log == nullptr) return PyObject_Vectorcall(original, args, count, names);
  return log->launch(original, args, count, names);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
  return object == nullptr ? Py_NewRef(self) : PyMethod_New(self, object);
}

int visit_launch(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<LaunchWatch*>(self)->original);
  return 0;
}

void free_launch(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_DECREF(reinterpret_cast<LaunchWatch*>(self)->original);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(LaunchWatch, call), READONLY, nullptr},
    {"__wrapped__", T_OBJECT, offsetof(LaunchWatch, original), READONLY, nullptr},
    {nullptr}};

PyType_Slot launch_slots[] = {
    {Py_tp_call, (void*)PyVectorcall_Call},
    {Py_tp_descr_get, (void*)bind},
    {Py_tp_traverse, (void*)visit_launch},
    {Py_tp_dealloc, (void*)free_launch},
    {Py_tp_members, launch_members},
    {0, nullptr}};

constexpr unsigned kMethodFlags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
    Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;

PyType_Spec launch_spec = {
    "cgtool_op_watch.LaunchWatch", sizeof(LaunchWatch), 0, kMethodFlags, launch_slots};

// A new object of the type that `spec` makes; its fields are 0.
py::object new_method(PyObject*& type, PyType_Spec& spec) {
  if (type == nullptr) type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  auto made = py::reinterpret_steal<py::object>(
      PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0));
  if (!made) throw py::error_already_set();
  return made;
}

py::object watched_launch(py::object original) {
  static PyObject* type = nullptr;
  auto made = new_method(type, launch_spec);
  auto& launch = *reinterpret_cast<LaunchWatch*>(made.ptr());
  launch.call = watch_launch;
  launch.original = original.release().ptr();
  return made;
}

// An op that PyTorch dispatches in Python.
py::object watch_call(const std::string& name, const py::function& run) {
  std::optional<Watched> watched;
  {
    py::gil_scoped_release released;
    watched.emplace([&name](Log& log) { return log.op_named(name); });
  }
  py::object result = run();
  watched->returned();
  return result;
}

// The kernel is on the key as long as this exists.
class Kernel {
 public:
  explicit Kernel(int key)
      : library_(torch::Library::IMPL, "_", watched_key = static_cast<DispatchKey>(key), __FILE__,
                 __LINE__) {
    library_.fallback(torch::CppFunction::makeFromBoxedFunction<&kernel>());
  }

 private:
  torch::Library library_;
};

// Functions of the driver, by address; 0 for those that it does not have.
struct Driver {
  uintptr_t capture_info;  // cuStreamGetCaptureInfo
  bool with_edges;         // Whether it has an argument for edges.
  uintptr_t exchange_mode, free_bytes;                         // cuThreadExchangeStreamCaptureMode, cuMemGetInfo
  uintptr_t nodes, edges, edges_with_data, type, params;       // Of graphs, and of their nodes.
  uintptr_t kernel_function;                                   // cuKernelGetFunction
  uintptr_t name, attribute, parameter, active_blocks;         // Of functions.
};

// CUDA_KERNEL_NODE_PARAMS_v2.
struct Launch {
  uint64_t function;
  uint32_t grid[3], block[3], shared_bytes;
  uint64_t parameters, extra;  // The arguments.
  uint64_t kernel, context;
};

// What the driver reports of a function; none for what it does not.
struct Function {
  std::optional<std::string> name;
  std::vector<std::optional<int>> attributes;
  std::optional<std::vector<std::pair<size_t, size_t>>> parameters;  // Offset and size.
};

template <typename... Arguments>
int call(uintptr_t function, Arguments... arguments) {
  constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND
  if (function == 0) return kNotFound;
  return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
}

// Calls that a capture in mode `global` refuses are permitted while this exists.
class Relaxed {
 public:
  explicit Relaxed(const Driver& driver) : exchange_(driver.exchange_mode) { exchange(); }
  ~Relaxed() { exchange(); }

 private:
  void exchange() {
    if (is_exchanged_) is_exchanged_ = call(exchange_, &mode_) == 0;
  }

  uintptr_t exchange_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  bool is_exchanged_ = true;
};

// The nodes of a graph, as read before its capture ended.
struct ReadGraph {
  std::vector<uint64_t> nodes;  // In order of creation.
  std::vector<int> launches;    // By node, the launch of a kernel; -1 for any other node.
  std::vector<std::string> params;  // A `Launch` for each number there, without its arguments.
  std::vector<uint64_t> from, to, data;  // Edges.

  py::list distinct_launches() const {
    py::list result;
    for (const std::string& each : params) result.append(py::bytes(each));
    return result;
  }

  // Position and handle of the nodes that are no kernels.
  std::vector<std::pair<size_t, uint64_t>> others() const {
    std::vector<std::pair<size_t, uint64_t>> result;
    for (size_t at = 0; at < nodes.size(); ++at) {
      if (launches[at] < 0) result.emplace_back(at, nodes[at]);
    }
    return result;
  }

  // Positions of both nodes, and the edge's data.
  std::vector<std::tuple<size_t, size_t, uint64_t>> edges() const {
    std::unordered_map<uint64_t, size_t> at;
    for (size_t number = 0; number < nodes.size(); ++number) at.emplace(nodes[number], number);
    std::vector<std::tuple<size_t, size_t, uint64_t>> result;
    for (size_t edge = 0; edge < from.size(); ++edge) {
      result.emplace_back(at.at(from[edge]), at.at(to[edge]), data[edge]);
    }
    return result;
  }
};

// Reads graphs. What the driver knows of a function is asked when the first graph with it is read,
// because the program may unload the function afterwards.
class Reader {
 public:
  // `attributes`: the numbers of those that are read of each function.
  Reader(const std::unordered_map<std::string, size_t>& names, std::vector<int> attributes)
      : attributes_(std::move(attributes)) {
    auto get = [&names](const char* name) { return names.at(name); };
    driver_ = {get("capture_info"), get("with_edges") != 0, get("exchange_mode"),
               get("free_bytes"), get("nodes"), get("edges"), get("edges_with_data"), get("type"),
               get("params"), get("kernel_function"), get("name"), get("attribute"),
               get("parameter"), get("active_blocks")};
  }

  // The graph that a stream is being captured into; None if it is not, or cannot be read.
  std::unique_ptr<ReadGraph> read(uintptr_t stream) {
    py::gil_scoped_release released;
    int status = 0;
    void *graph = nullptr, *none = nullptr;
    auto handle = reinterpret_cast<void*>(stream);
    int error = driver_.with_edges
        ? call(driver_.capture_info, handle, &status, none, &graph, none, none, none)
        : call(driver_.capture_info, handle, &status, none, &graph, none, none);
    if (error != 0 || status != kActive) return nullptr;
    Relaxed relaxed(driver_);
    auto result = std::make_unique<ReadGraph>();
    if (!read_nodes(graph, *result) || !read_edges(graph, *result)) return nullptr;
    for (std::string& params : result->params) {
      auto launch = reinterpret_cast<Launch*>(params.data());
      if (launch->function == 0 && launch->kernel != 0) {
        call(driver_.kernel_function, (void*)&launch->function, (void*)launch->kernel);
      }
      if (launch->function == 0) continue;
      read_function(launch->function);
      auto [x, y, z] = launch->block;
      read_active_blocks({launch->function, x * y * z, launch->shared_bytes});
    }
    return result;
  }

  std::optional<size_t> free_bytes() const {
    py::gil_scoped_release released;
    Relaxed relaxed(driver_);
    size_t free = 0, total = 0;
    if (call(driver_.free_bytes, &free, &total) != 0) return std::nullopt;
    return free;
  }

  // Name, attributes, and (offset, size) of each parameter.
  std::tuple<std::optional<py::bytes>, std::vector<std::optional<int>>,
             std::optional<std::vector<std::pair<size_t, size_t>>>>
  function(uint64_t function) {
    Function known;
    {
      py::gil_scoped_release released;
      Relaxed relaxed(driver_);
      known = read_function(function);
    }
    std::optional<py::bytes> name;
    if (known.name) name = py::bytes(*known.name);
    return {name, known.attributes, known.parameters};
  }

  // How many blocks of a function fit on a multiprocessor.
  std::optional<int> active_blocks(uint64_t function, uint32_t threads, size_t shared_bytes) {
    py::gil_scoped_release released;
    Relaxed relaxed(driver_);
    return read_active_blocks({function, threads, shared_bytes});
  }

 private:
  static constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE
  static constexpr int kKernel = 0;        // CU_GRAPH_NODE_TYPE_KERNEL

  // Without the GIL, as all that follows.
  Function read_function(uint64_t function) {
    std::lock_guard lock(mutex_);
    auto [found, is_new] = functions_.try_emplace(function);
    Function& known = found->second;
    if (!is_new) return known;
    auto handle = reinterpret_cast<void*>(function);
    const char* text = nullptr;
    if (call(driver_.name, &text, handle) == 0 && text != nullptr) known.name = text;
    for (int attribute : attributes_) {
      int value = 0;
      bool is_known = call(driver_.attribute, &value, attribute, handle) == 0;
      known.attributes.push_back(is_known ? std::optional(value) : std::nullopt);
    }
    constexpr size_t kMostParameters = 1024;
    auto& parameters = known.parameters.emplace();
    while (parameters.size() < kMostParameters) {
      size_t offset = 0, size = 0;
      int error = call(driver_.parameter, handle, parameters.size(), &offset, &size);
      if (error == kInvalidValue) break;  // There is no parameter with this number.
      if (error != 0) {
        known.parameters.reset();
        break;
      }
      parameters.emplace_back(offset, size);
    }
    return known;
  }

  using Occupancy = std::tuple<uint64_t, uint32_t, size_t>;  // Function, threads, shared bytes.

  std::optional<int> read_active_blocks(const Occupancy& of) {
    std::lock_guard lock(mutex_);
    auto [found, is_new] = active_blocks_.try_emplace(of);
    if (!is_new) return found->second;
    auto [function, threads, shared_bytes] = of;
    int blocks = 0;
    int error = call(
        driver_.active_blocks, &blocks, reinterpret_cast<void*>(function),
        static_cast<int>(threads), shared_bytes);
    if (error == 0) found->second = blocks;
    return found->second;
  }

  bool read_nodes(void* graph, ReadGraph& result) const {
    size_t count = 0;
    void* none = nullptr;
    if (call(driver_.nodes, graph, none, &count) != 0) return false;
    result.nodes.resize(count);
    if (count != 0 && call(driver_.nodes, graph, (void*)result.nodes.data(), &count) != 0) {
      return false;
    }
    std::unordered_map<std::string, int> known;
    for (uint64_t node : result.nodes) {
      auto handle = reinterpret_cast<void*>(node);
      int type = -1, number = -1;
      Launch launch{};
      if (call(driver_.type, handle, &type) == 0 && type == kKernel &&
          call(driver_.params, handle, (void*)&launch) == 0) {
        launch.parameters = launch.extra = 0;
        std::string params(reinterpret_cast<const char*>(&launch), sizeof launch);
        auto [found, is_new] = known.try_emplace(params, result.params.size());
        if (is_new) result.params.push_back(std::move(params));
        number = found->second;
      }
      result.launches.push_back(number);
    }
    return true;
  }

  bool read_edges(void* graph, ReadGraph& result) const {
    size_t count = 0;
    void* none = nullptr;
    bool with_data = driver_.edges_with_data != 0;
    auto edges = [&](void* from, void* to, void* data) {
      return with_data ? call(driver_.edges_with_data, graph, from, to, data, &count)
                       : call(driver_.edges, graph, from, to, &count);
    };
    if (edges(none, none, none) != 0) return false;
    for (auto column : {&result.from, &result.to, &result.data}) column->resize(count);
    return count == 0 || edges(result.from.data(), result.to.data(), result.data.data()) == 0;
  }

  Driver driver_;
  const std::vector<int> attributes_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Function> functions_;
  std::map<Occupancy, std::optional<int>> active_blocks_;
};

// What the allocator has reserved on the current GPU; None if this PyTorch does not say it here.
template <typename Allocator>
std::optional<int64_t> reserved_by(c10::Allocator* allocator) {
  if constexpr (requires { sizeof(Allocator); }) {
    auto known = dynamic_cast<Allocator*>(allocator);
    if (known != nullptr && known->initialized()) {
      auto device = c10::impl::getDeviceGuardImpl(DeviceType::CUDA)->getDevice();
      return known->getDeviceStats(device.index()).reserved_bytes[0].current;
    }
  }
  return std::nullopt;
}

std::optional<int64_t> reserved_bytes() {
  if (!c10::impl::hasDeviceGuardImpl(DeviceType::CUDA)) return std::nullopt;
  return reserved_by<c10::DeviceAllocator>(c10::GetAllocator(DeviceType::CUDA));
}

// A graph that was replayed since the graphs have changed.
struct alignas(64) Counted {
  PyObject* graph;  // Only compared; null where the table is empty.
  uint64_t *cells, *order;
  uint64_t slots, number;         // Of `order`, behind its count, and what is noted there.
  PyObject *live, *view, *ring;  // Owned: what `graphs` has for it, and whose memory the others are.
};

class CountedTable {
 public:
  // The place of a graph: it is there, or nothing is.
  Counted& operator[](PyObject* graph) {
    size_t at = reinterpret_cast<uintptr_t>(graph) / 16 * 0x9E3779B97F4A7C15 >> 32;
    while (places_[at & mask_].graph != graph && places_[at & mask_].graph != nullptr) ++at;
    return places_[at & mask_];
  }

  void add(const Counted& counted) {
    if (++used_ * 2 > mask_ + 1) {
      std::vector<Counted> before(mask_ * 2 + 2);
      before.swap(places_);
      mask_ = places_.size() - 1;
      for (const Counted& each : before) {
        if (each.graph != nullptr) (*this)[each.graph] = each;
      }
    }
    (*this)[counted.graph] = counted;
  }

  // What it owned.
  std::vector<Counted> clear() {
    std::vector<Counted> before(8);
    before.swap(places_);
    mask_ = places_.size() - 1;
    used_ = 0;
    return before;
  }

  const std::vector<Counted>& places() const { return places_; }

 private:
  std::vector<Counted> places_ = std::vector<Counted>(8);
  size_t mask_ = 7, used_ = 0;
};

// Takes the place of `CUDAGraph.replay` and counts its calls, as `counted_replay` of
// recorder/replays.py does, which says what the numbers are. Between two replays, a program may have
// used all of the processor's caches, and each line of them that is touched here comes from memory
// then: in Python these are dozens. So what is needed afterwards is fetched while the graph is
// launched, and a graph that was replayed before is looked for among a few, not in a dictionary.
struct CountedReplay {
  PyObject_HEAD;
  vectorcallfunc call;
  PyObject *original, *noted;  // A function and a dictionary; owned, as the next four.
  int64_t since;               // What is added to the monotonic clock.
  uint64_t first, often, many, seldom;  // `LookedUp` of recorder/replays.py.
  CountedTable table;
  PyObject* graphs;
  PyObject *unseen, *looked_up, *notes;  // What is called for a new graph, a line, and a note.
  Py_ssize_t cells, order, number;       // Offsets of these slots in a graph.
};

int64_t monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

PyObject*& slot_of(PyObject* live, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(live) + offset);
}

// Looks for a graph that is not in the table. 1 if it is there now; 0 if it is not counted; -1 for an
// error. `is_over`: it has been replayed.
[[gnu::cold, gnu::noinline]] int find_counted(
    CountedReplay& replays, PyObject* cuda_graph, bool is_over) {
  if (replays.graphs == nullptr) return 0;  // The garbage collector has cleared it.
  auto key = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(cuda_graph));
  if (!key) return -1;
  auto live = py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(replays.graphs, key.ptr()));
  if (!live) {
    if (PyErr_Occurred()) return -1;
    if (!is_over) return 0;
    live = py::reinterpret_steal<py::object>(PyObject_CallOneArg(replays.unseen, cuda_graph));
    if (!live) return -1;
    if (live.is_none()) return 0;
  }
  PyObject* view = slot_of(live.ptr(), replays.cells);
  PyObject* ring = slot_of(live.ptr(), replays.order);
  PyObject* number = slot_of(live.ptr(), replays.number);
  if (view == nullptr || !PyMemoryView_Check(view)) return 0;
  if (ring == nullptr || !PyMemoryView_Check(ring) || number == nullptr) return 0;
  uint64_t known = PyLong_AsUnsignedLongLong(number);
  if (PyErr_Occurred()) return -1;
  if (replays.table[cuda_graph].graph == nullptr) {  // Not if `unseen` has replayed it.
    auto cells = static_cast<uint64_t*>(PyMemoryView_GET_BUFFER(view)->buf);
    auto order = static_cast<uint64_t*>(PyMemoryView_GET_BUFFER(ring)->buf);
    uint64_t slots = PyMemoryView_GET_BUFFER(ring)->len / sizeof(uint64_t) - 1;
    replays.table.add({cuda_graph, cells, order, slots, known, live.release().ptr(),
                       Py_NewRef(view), Py_NewRef(ring)});
  }
  return 1;
}

// Calls what is in Python. False if it raised.
[[gnu::cold, gnu::noinline]] bool tell(
    PyObject* callable, PyObject* live, PyObject* cuda_graph, int64_t at, int64_t spent) {
  if (callable == nullptr) return true;
  PyObject* done =
      PyObject_CallFunction(callable, "OOLL", live, cuda_graph, (long long)at, (long long)spent);
  Py_XDECREF(done);
  return done != nullptr;
}

[[gnu::hot]] PyObject* count_replay(
    PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  auto& replays = *reinterpret_cast<CountedReplay*>(self);
  if (PyVectorcall_NARGS(count) == 0) {
    return PyObject_Vectorcall(replays.original, args, count, names);  // It says what is missing.
  }
  PyObject* cuda_graph = args[0];
  __builtin_prefetch(replays.table[cuda_graph].cells, 1);  // A prefetch of nothing does nothing.
  __builtin_prefetch(&reinterpret_cast<PyDictObject*>(replays.noted)->ma_used);
  int64_t begin = monotonic_ns();
  if (replays.table[cuda_graph].graph == nullptr &&
      find_counted(replays, cuda_graph, false) < 0) {
    return nullptr;
  }
  if (Counted& counted = replays.table[cuda_graph]; counted.graph != nullptr) {
    counted.order[1 + counted.order[0]++ % counted.slots] = counted.number;
  }
  PyObject* result = PyObject_Vectorcall(replays.original, args, count, names);
  if (result == nullptr) {
    if (Counted& counted = replays.table[cuda_graph]; counted.graph != nullptr) --counted.order[0];
    return nullptr;
  }
  int64_t end = monotonic_ns(), at = replays.since + end, spent = end - begin;
  if (replays.table[cuda_graph].graph == nullptr) {
    int is_counted = find_counted(replays, cuda_graph, true);
    if (is_counted == 0) return result;
    if (is_counted < 0) {
      Py_DECREF(result);
      return nullptr;
    }
  }
  Counted& counted = replays.table[cuda_graph];
  uint64_t* cells = counted.cells;
  uint64_t number = ++cells[0];
  cells[2] = at;
  cells[3] += spent;
  if (number == 1) cells[1] = at;
  bool looks_up = number <= replays.first ||
      number % (number <= replays.many ? replays.often : replays.seldom) == 0;
  bool is_noted = PyDict_GET_SIZE(replays.noted) != 0;
  if (__builtin_expect(looks_up || is_noted, false)) {
    PyObject* live = Py_NewRef(counted.live);
    bool is_told = (!looks_up || tell(replays.looked_up, live, cuda_graph, at, spent)) &&
        (!is_noted || tell(replays.notes, live, cuda_graph, at, spent));
    Py_DECREF(live);
    if (!is_told) {
      Py_DECREF(result);
      return nullptr;
    }
  }
  return result;
}

void forget_counted(CountedReplay& replays) {
  for (const Counted& each : replays.table.clear()) {  // Which may run Python.
    Py_XDECREF(each.live);
    Py_XDECREF(each.view);
    Py_XDECREF(each.ring);
  }
}

PyObject* forget_replays(PyObject* self, PyObject*) {
  forget_counted(*reinterpret_cast<CountedReplay*>(self));
  Py_RETURN_NONE;
}

int visit_replays(PyObject* self, visitproc visit, void* arg) {
  auto& replays = *reinterpret_cast<CountedReplay*>(self);
  Py_VISIT(Py_TYPE(self));
  for (PyObject* each : {replays.original, replays.graphs, replays.noted, replays.unseen,
                         replays.looked_up, replays.notes}) {
    Py_VISIT(each);
  }
  for (const Counted& each : replays.table.places()) {
    Py_VISIT(each.live);
    Py_VISIT(each.view);
    Py_VISIT(each.ring);
  }
  return 0;
}

int clear_replays(PyObject* self) {
  auto& replays = *reinterpret_cast<CountedReplay*>(self);
  forget_counted(replays);
  for (PyObject** each : {&replays.graphs, &replays.unseen, &replays.looked_up, &replays.notes}) {
    Py_CLEAR(*each);
  }
  return 0;
}

void free_replays(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_replays(self);
  auto& replays = *reinterpret_cast<CountedReplay*>(self);
  Py_DECREF(replays.original);
  Py_DECREF(replays.noted);
  std::destroy_at(&replays.table);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef replay_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(CountedReplay, call), READONLY, nullptr},
    {"__wrapped__", T_OBJECT, offsetof(CountedReplay, original), READONLY, nullptr},
    {nullptr}};

PyMethodDef replay_methods[] = {
    {"forget", forget_replays, METH_NOARGS, "The graphs have changed: look for them again."},
    {nullptr}};

PyType_Slot replay_slots[] = {
    {Py_tp_call, (void*)PyVectorcall_Call},
    {Py_tp_descr_get, (void*)bind},
    {Py_tp_traverse, (void*)visit_replays},
    {Py_tp_clear, (void*)clear_replays},
    {Py_tp_dealloc, (void*)free_replays},
    {Py_tp_members, replay_members},
    {Py_tp_methods, replay_methods},
    {0, nullptr}};

PyType_Spec replay_spec = {
    "cgtool_op_watch.CountedReplay", sizeof(CountedReplay), 0, kMethodFlags, replay_slots};

// `cells`, `order` and `number`: these slots of a graph, as its class has them.
py::object counted_replay(
    py::object original, py::dict graphs, py::dict noted, py::object unseen, py::object looked_up,
    py::object notes, py::object cells, py::object order, py::object number, int64_t since,
    uint64_t first, uint64_t often, uint64_t many, uint64_t seldom) {
  static PyObject* type = nullptr;
  auto offset_of = [](const py::object& slot) {
    if (!Py_IS_TYPE(slot.ptr(), &PyMemberDescr_Type)) throw py::type_error("no slot");
    return reinterpret_cast<PyMemberDescrObject*>(slot.ptr())->d_member->offset;
  };
  auto made = new_method(type, replay_spec);
  auto& replays = *reinterpret_cast<CountedReplay*>(made.ptr());
  std::construct_at(&replays.table);
  replays.call = count_replay;
  replays.original = original.release().ptr();
  replays.graphs = graphs.release().ptr();
  replays.noted = noted.release().ptr();
  replays.unseen = unseen.release().ptr();
  replays.looked_up = looked_up.release().ptr();
  replays.notes = notes.release().ptr();
  replays.cells = offset_of(cells);
  replays.order = offset_of(order);
  replays.number = offset_of(number);
  replays.since = since;
  replays.first = first;
  replays.often = often;
  replays.many = many;
  replays.seldom = seldom;
  return made;
}

void watch(std::shared_ptr<Log> log) {
  current.swap(log);  // What was there is dropped afterwards: that may run Python.
  is_watching = current != nullptr;
}

}  // namespace

PYBIND11_MODULE(cgtool_op_watch, module) {
  py::class_<Settings, std::shared_ptr<Settings>>(module, "Settings", py::module_local())
      .def(py::init([](uintptr_t query, bool with_edges, std::unordered_set<std::string> nothing,
                       py::function stream, py::function waiting, py::object call_module,
                       py::function look) {
        return std::make_shared<Settings>(Settings{
            query, with_edges, std::move(nothing), std::move(stream), std::move(waiting),
            std::move(call_module), std::move(look)});
      }));
  py::class_<Log, std::shared_ptr<Log>>(module, "Log", py::module_local())
      .def(py::init<std::shared_ptr<Settings>, int, py::object>())
      .def("close", &Log::close)
      .def("home", &Log::home)
      .def("waitings", &Log::waitings)
      .def("note", &Log::note_current)
      .def("calls", &Log::calls)
      .def("frames", &Log::frames)
      .def("autograd_nodes", &Log::autograd_nodes)
      .def("outside", &Log::outside)
      .def("uses", &Log::uses)
      .def("positions", &Log::positions)
      .def("streams", &Log::streams);
  py::class_<Kernel>(module, "Kernel", py::module_local()).def(py::init<int>());
  module.def("watch_call", &watch_call);
  module.def("watched_launch", &watched_launch);
  module.def("chain_of", &chain_of);
  py::class_<ReadGraph>(module, "ReadGraph", py::module_local())
      .def_readonly("handles", &ReadGraph::nodes)
      .def_readonly("launches", &ReadGraph::launches)
      .def("distinct_launches", &ReadGraph::distinct_launches)
      .def("others", &ReadGraph::others)
      .def("edges", &ReadGraph::edges);
  py::class_<Reader>(module, "Reader", py::module_local())
      .def(py::init<const std::unordered_map<std::string, size_t>&, std::vector<int>>())
      .def("read", &Reader::read)
      .def("free_bytes", &Reader::free_bytes)
      .def("function", &Reader::function)
      .def("active_blocks", &Reader::active_blocks);
  module.def("reserved_bytes", &reserved_bytes);
  module.def("counted_replay", &counted_replay);
  module.def("watch", &watch, py::arg("log").none(true));
  // A log holds what must not outlive Python.
  py::module_::import("atexit").attr("register")(py::cpp_function([] { watch(nullptr); }));
}
