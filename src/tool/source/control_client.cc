#include "src/tool/source/control_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/strip.h"
#include "src/base/descriptor.h"
#include "src/protocol/control.h"
#include "src/tool/profile/info.h"
#include "src/tool/util/threads.h"

namespace hbmprof::tool {
namespace {

namespace fs = std::filesystem;
using internal::FileDescriptor;
using internal::RetryOnSignal;

constexpr size_t kMaxThreads = 16;
constexpr int64_t kMaxInfoBytes = int64_t{1} << 20;
constexpr int kSearchMillis = 1'500;  // for the answers of all processes, one of which has the wanted name
constexpr int64_t kMaxReservedBytes = int64_t{64} << 20;  // before the bytes have arrived

struct Connection {
  const FileDescriptor& fd;
  const std::string& path;
  int millis;                                      // for each step
  std::chrono::steady_clock::time_point deadline;  // for all steps together
};

absl::Status WaitFor(const Connection& connection, short events) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(connection.deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) return Unavailable(connection.path, ": the process sends its answer too slowly");
  const int millis = static_cast<int>(std::min<int64_t>(connection.millis, left.count()));
  pollfd polled = {connection.fd.get(), events, 0};
  const int ready = RetryOnSignal([&] { return poll(&polled, 1, millis); });
  return ready > 0 ? absl::OkStatus() : Unavailable(connection.path, ": the process does not answer");
}

bool GetPeer(const FileDescriptor& fd, ucred* peer) {
  socklen_t size = sizeof(*peer);
  return getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, peer, &size) == 0;
}

// Another user's process could give wrong answers. Root reads those of all users.
absl::Status CheckPeer(const Connection& connection) {
  ucred peer = {};
  if (!GetPeer(connection.fd, &peer)) return Unavailable(connection.path, ": ", std::strerror(errno));
  if (peer.uid == geteuid() || peer.uid == 0 || geteuid() == 0) return absl::OkStatus();
  return PermissionDenied(connection.path, ": is the socket of a process of another user (", peer.uid,
                          "), who is not asked");
}

FileDescriptor NewSocket() { return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// Returns whether the socket is connected; sets errno if not.
bool ConnectOnce(const FileDescriptor& fd, const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

absl::Status Connect(const Connection& connection) {
  const std::string& path = connection.path;
  if (path.size() >= sizeof(sockaddr_un::sun_path)) return Unavailable(path, ": the path is too long for a socket");
  // If the queue of a Unix socket is full, connect fails at once. So connect is called again until the queue has space.
  const auto end =
      std::min(connection.deadline, std::chrono::steady_clock::now() + std::chrono::milliseconds(connection.millis));
  do {
    if (ConnectOnce(connection.fd, path)) return CheckPeer(connection);
    if (errno == EACCES || errno == EPERM) return PermissionDenied(path, ": ", std::strerror(errno));
    if (errno == ECONNREFUSED || errno == ENOENT) return NotFound(path, ": the process has ended");
    if (errno != EAGAIN && errno != EINTR) return Unavailable(path, ": ", std::strerror(errno));
    usleep(10'000);
  } while (std::chrono::steady_clock::now() < end);
  return Unavailable(path, ": the process does not answer");
}

absl::Status Send(const Connection& connection, std::string_view text) {
  while (!text.empty()) {
    RETURN_IF_ERROR(WaitFor(connection, POLLOUT));
    const ssize_t count =
        RetryOnSignal([&] { return send(connection.fd.get(), text.data(), text.size(), MSG_NOSIGNAL); });
    if (count <= 0) return Unavailable(connection.path, ": the process has closed the connection");
    text.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status Receive(const Connection& connection, std::string* text) {
  RETURN_IF_ERROR(WaitFor(connection, POLLIN));
  char bytes[65536];
  const ssize_t count = RetryOnSignal([&] { return recv(connection.fd.get(), bytes, sizeof(bytes), 0); });
  if (count <= 0) {
    return Unavailable(connection.path, ": the process has closed the connection before its answer was complete");
  }
  text->append(bytes, static_cast<size_t>(count));
  return absl::OkStatus();
}

// Reads "ok BYTES\n" or "error BYTES\n", after any line feeds. Sets `text` to the part of the body that has already
// arrived.
absl::Status ReceiveHead(const Connection& connection, std::string* text, bool* is_ok, int64_t* bytes) {
  size_t end = 0;
  while ((end = text->find('\n')) == std::string::npos && text->size() < 100) {
    RETURN_IF_ERROR(Receive(connection, text));
    text->erase(0, text->find_first_not_of('\n'));
  }
  std::istringstream head(text->substr(0, end));
  std::string word;
  if (!(head >> word >> *bytes) || (word != "ok" && word != "error") || *bytes < 0) {
    return Unavailable(connection.path, ": this is not the socket of a process with hbmprof");
  }
  *is_ok = word == "ok";
  text->erase(0, end + 1);
  return absl::OkStatus();
}

void ReadInfo(const std::string& line, LiveProcess* process) {
  std::istringstream words(line);
  std::string key;
  words >> key;
  const auto rest = [&] {
    std::string text;
    std::getline(words >> std::ws, text);
    return text;
  };
  for (const auto& [name, member] : {std::pair("name", &LiveProcess::name), std::pair("version", &LiveProcess::version),
                                     std::pair("host", &LiveProcess::host)}) {
    if (key == name) process->*member = rest();
  }
  if (key == "pid") {
    words >> process->pid;
  } else if (key == "seconds") {
    words >> process->seconds;
  } else if (key == "environment") {
    std::string name;
    words >> name;
    process->environment[name] = rest();
  } else if (key == "cgroup") {
    process->control_group += rest() + "\n";
  } else if (key == "attach") {
    process->is_detached = rest() == "detached";
  } else if (key == "warning") {
    process->warnings.push_back(rest());
  } else if (key == "memory") {
    LiveMemory memory;
    if (!(words >> memory.space >> memory.in_use >> memory.peak >> memory.limit)) return;
    memory.device = rest();
    process->memory.push_back(std::move(memory));
  }
}

std::string DefaultDirectory() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    return Cat(runtime, "/hbmprof");
  }
  return Cat("/tmp/hbmprof-", static_cast<int64_t>(geteuid()));
}

// Another user could have made the directory, with sockets that look like those of this user's processes. Root may name
// a directory of another user.
absl::Status CheckDirectory(const std::string& directory) {
  struct stat info;
  if (lstat(directory.c_str(), &info) != 0) {
    return errno == ENOENT ? NotFound(NoProcessText("", directory))
                           : Unavailable(directory, ": ", std::strerror(errno));
  }
  const bool takes_any_owner = geteuid() == 0 && directory != DefaultDirectory();
  if (internal::IsSafeControlDirectory(info, takes_any_owner ? info.st_uid : geteuid())) return absl::OkStatus();
  return PermissionDenied(directory,
                          " must be a directory that belongs to you or to root and that no other user "
                          "may write to; HBMPROF_SOCKET_DIR names another one");
}

// Returns the id in the name of a socket; "" for another file.
std::string IdIn(const fs::path& path) {
  const std::string file = path.filename();
  absl::string_view name = file;
  const bool is_socket = absl::ConsumePrefix(&name, internal::kControlSocketPrefix) &&
                         absl::ConsumeSuffix(&name, internal::kControlSocketSuffix);
  return is_socket ? std::string(name) : "";
}

LiveProcess ReadProcess(const std::string& path, const std::string& info) {
  LiveProcess process;
  process.socket = path;
  process.id = IdIn(path);
  std::istringstream lines(info);
  for (std::string line; std::getline(lines, line);) ReadInfo(line, &process);
  return process;
}

// Removes the socket file if its process was killed. Root does so for all users.
void RemoveIfDead(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  if ((info.st_uid == geteuid() || geteuid() == 0) && IsDead(path)) unlink(path.c_str());
}

// Returns the directories of the control channels in `list`, a file like /proc/net/unix, of processes with this id in
// their own pid namespace; "": of all processes.
std::set<std::string> ChannelDirectories(const std::string& list, const std::string& id) {
  std::set<std::string> directories;
  std::ifstream sockets(list);
  for (std::string line; std::getline(sockets, line);) {
    constexpr int kFieldsBefore = 7;
    std::istringstream words(line);
    std::string path;
    for (int i = 0; i < kFieldsBefore; ++i) words >> path;
    std::getline(words >> std::ws, path);
    const size_t name = path.rfind(Cat("/", internal::kControlBoundPrefix, id, id.empty() ? "" : "."));
    if (name != std::string::npos) directories.insert(path.substr(0, name));
  }
  return directories;
}

// Returns the id of the process in the folder `process` of /proc, in its own pid namespace.
std::string InnerId(const std::string& process) {
  std::ifstream status(process + "/status");
  std::string line;
  while (std::getline(status, line) && line.rfind("NSpid:", 0) != 0) continue;
  return line.substr(line.find_last_of(" \t") + 1);
}

}  // namespace

std::string ControlDirectory() {
  if (const char* directory = std::getenv(internal::kControlDirectoryVariable); directory != nullptr && *directory) {
    return directory;
  }
  return DefaultDirectory();
}

std::string ListOf(const std::vector<LiveProcess>& processes) {
  return absl::StrJoin(processes, ", ", [](std::string* out, const LiveProcess& process) {
    *out += Cat(process.id, " ", process.name);
  });
}

Json ProcessJson(const LiveProcess& process) {
  Json json = {{"id", process.id}, {"name", process.name}, {"version", process.version}, {"seconds", process.seconds}};
  if (const std::string off = OffSince(process.warnings); !off.empty()) json["recording_off_since"] = off;
  Json& list = json["memories"] = Json::array();
  for (const LiveMemory& memory : process.memory) {
    list.push_back({{"name", memory.space == "device" ? memory.device : Cat(memory.device, " ", memory.space)},
                    {"in_use", memory.in_use},
                    {"peak", memory.peak},
                    {"limit", memory.limit < 0 ? Json() : Json(memory.limit)}});
  }
  return json;
}

std::vector<int64_t> RunningProcesses(const std::string& pid_or_name) {
  int64_t pid = 0;
  std::error_code error;
  if (absl::SimpleAtoi(pid_or_name, &pid)) {
    return fs::exists(Cat("/proc/", pid), error) ? std::vector{pid} : std::vector<int64_t>();
  }
  std::vector<int64_t> found;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string id = entry->path().filename();
    if (!absl::SimpleAtoi(id, &pid) || pid == getpid()) continue;
    if (const std::string name = internal::NameInProc(id); !name.empty() && name == pid_or_name.substr(0, 15)) {
      found.push_back(pid);
    }
  }
  return found;
}

// Returns whether both paths lead to one file. If one of them may not be looked at, their texts decide.
static bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  const bool is_same = fs::equivalent(a, b, error);
  return error == std::errc::permission_denied ? a == b || absl::EndsWith(a, "/root" + b) : !error && is_same;
}

std::string NoProcessText(const std::string& pid_or_name, const std::string& directory) {
  const std::vector<int64_t> running = pid_or_name.empty() ? std::vector<int64_t>() : RunningProcesses(pid_or_name);
  if (running.empty()) {
    const std::set<std::string> others = ChannelDirectories("/proc/net/unix", "");
    return Cat("no process ", pid_or_name, pid_or_name.empty() ? "" : " ", "has a control channel in ", directory,
               ". `hbmprof run` starts a program with one; HBMPROF_SOCKET_DIR names another directory",
               others.empty() ? "" : Cat(", such as ", absl::StrJoin(others, ", ")));
  }
  const std::string process = Cat("/proc/", running.front());
  const std::string name = Cat("process ", pid_or_name);
  const std::string id = InnerId(process);
  const std::set<std::string> channels =
      id.empty() ? std::set<std::string>() : ChannelDirectories(process + "/net/unix", id);
  for (std::string other : channels) {
    // A process of another container can have this id and the same network.
    const std::string seen = Cat(process, other[0] == '/' ? "/root" : "/cwd/", other);
    struct stat info;
    if (stat(Cat(seen, "/", internal::kControlSocketPrefix, id, internal::kControlSocketSuffix).c_str(), &info) != 0 &&
        errno != EACCES)
      continue;
    if (IsSameFile(seen, directory)) return Cat(name, " has the id ", id, " in ", directory);
    if (other[0] != '/' || !IsSameFile(seen, other)) other = seen;
    const bool is_others = stat(process.c_str(), &info) == 0 && info.st_uid != geteuid() && geteuid() != 0;
    return Cat(name, " is recorded, but its control channel is not in ", directory, ": set HBMPROF_SOCKET_DIR=", other,
               is_others ? Cat(", as user ", info.st_uid, ", to whom the process belongs, or as root") : "");
  }
  std::ifstream maps(process + "/maps");
  bool has_driver = false;
  for (std::string line; std::getline(maps, line);) {
    has_driver = has_driver || line.find("/libcuda.so") != std::string::npos;
    const bool has_library = line.find("/libhbmprof") != std::string::npos;
    if (!has_library || line.find("/libhbmprof_c.so") != std::string::npos) continue;  // that one records no calls
    return Cat(name, " has loaded hbmprof, but has no control channel: it has made no CUDA call yet, or was started ",
               "with HBMPROF=0 or without HBMPROF_SOCKET_DIR, which `hbmprof run` sets");
  }
  return Cat(name, " has no control channel: ",
             has_driver ? Cat("`hbmprof attach ", running.front(), "` begins to record it")
                        : "it has not used CUDA yet; or it links hbmprof, and was started with HBMPROF=0 or without "
                          "HBMPROF_SOCKET_DIR");
}

absl::StatusOr<std::string> QueryProcess(const std::string& path, std::string_view request, const QueryLimits& limits) {
  const FileDescriptor fd = NewSocket();
  if (fd.get() < 0) return Unavailable(path, ": ", std::strerror(errno));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limits.total_millis);
  const Connection connection = {fd, path, limits.millis, deadline};
  RETURN_IF_ERROR(Connect(connection));
  RETURN_IF_ERROR(Send(connection, Cat(request, "\n")));
  std::string text;
  bool is_ok = false;
  int64_t bytes = 0;
  RETURN_IF_ERROR(ReceiveHead(connection, &text, &is_ok, &bytes));
  if (bytes > limits.answer_bytes) {
    return absl::OutOfRangeError(
        Cat(path, ": the answer has ", bytes, " bytes, more than the limit of ", limits.answer_bytes));
  }
  text.reserve(static_cast<size_t>(std::min(bytes, kMaxReservedBytes)));
  while (static_cast<int64_t>(text.size()) < bytes) RETURN_IF_ERROR(Receive(connection, &text));
  text.resize(static_cast<size_t>(bytes));
  if (!is_ok) return absl::InternalError(Cat(path, ": ", text));
  return text;
}

int64_t PidOf(const std::string& path, int millis) {
  const FileDescriptor fd = NewSocket();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(millis);
  ucred peer = {};
  return fd.get() >= 0 && Connect({fd, path, millis, deadline}).ok() && GetPeer(fd, &peer) ? peer.pid : 0;
}

bool IsDead(const std::string& path) { return !ConnectOnce(NewSocket(), path) && errno == ECONNREFUSED; }

std::vector<absl::StatusOr<std::string>> QueryProcesses(const std::vector<std::string>& paths, std::string_view request,
                                                        const QueryLimits& limits) {
  std::vector<absl::StatusOr<std::string>> answers(paths.size());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limits.total_millis);
  RunOnThreads(paths.size(), kMaxThreads, [&](size_t i) {
    const std::chrono::duration<double, std::milli> left = deadline - std::chrono::steady_clock::now();
    const double rounds = std::max(1.0, static_cast<double>(paths.size() - i) / kMaxThreads);
    const int part = static_cast<int>(left.count() / rounds);
    answers[i] = QueryProcess(paths[i], request, {std::min(limits.millis, part), part, limits.answer_bytes});
  });
  return answers;
}

absl::StatusOr<std::vector<LiveProcess>> ListProcesses(const std::string& directory, std::vector<std::string>* silent,
                                                       int millis) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  std::error_code error;
  std::vector<std::string> paths;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (!IdIn(entry->path()).empty()) paths.push_back(entry->path());
  }
  if (error) return Unavailable(directory, ": ", error.message());
  std::vector<LiveProcess> processes;
  const std::vector<absl::StatusOr<std::string>> answers =
      QueryProcesses(paths, "info", {millis, millis, kMaxInfoBytes});
  for (size_t i = 0; i < paths.size(); ++i) {
    if (answers[i].ok()) {
      processes.push_back(ReadProcess(paths[i], *answers[i]));
      continue;
    }
    RemoveIfDead(paths[i]);
    if (silent != nullptr && !absl::IsNotFound(answers[i].status())) silent->push_back(MessageOf(answers[i].status()));
  }
  absl::c_sort(processes, [](const LiveProcess& a, const LiveProcess& b) {
    return a.pid != b.pid ? a.pid < b.pid : a.socket < b.socket;
  });
  return processes;
}

absl::StatusOr<LiveProcess> FindProcess(const std::string& directory, const std::string& pid_or_name) {
  // A process that is named by its id may be slow.
  const std::string path =
      Cat(directory, "/", internal::kControlSocketPrefix, pid_or_name, internal::kControlSocketSuffix);
  struct stat file;
  if (pid_or_name.find('/') == std::string::npos && lstat(path.c_str(), &file) == 0) {
    RETURN_IF_ERROR(CheckDirectory(directory));
    const absl::StatusOr<std::string> info = QueryProcess(path, "info", {kQueryMillis, kQueryMillis, kMaxInfoBytes});
    if (info.ok()) return ReadProcess(path, *info);
    if (!absl::IsNotFound(info.status())) return info.status();
  }
  std::vector<std::string> silent;
  absl::StatusOr<std::vector<LiveProcess>> processes = ListProcesses(directory, &silent, kSearchMillis);
  if (absl::IsNotFound(processes.status())) return NotFound(NoProcessText(pid_or_name, directory));
  if (!processes.ok()) return processes.status();
  int64_t pid = -1;
  const bool is_pid = absl::SimpleAtoi(pid_or_name, &pid);
  std::vector<LiveProcess> found;
  for (LiveProcess& process : *processes) {
    if (is_pid ? process.pid == pid : process.name == pid_or_name) found.push_back(process);
  }
  if (found.size() == 1) return std::move(found.front());
  if (found.size() > 1) {
    return InvalidArgument("several processes are named ", pid_or_name, "; give one of these ids: ", ListOf(found));
  }
  const std::string no_answer =
      silent.empty() ? "" : Cat("; it may be one that does not answer: ", absl::StrJoin(silent, "; "));
  if (processes->empty() || !RunningProcesses(pid_or_name).empty()) {
    return NotFound(NoProcessText(pid_or_name, directory), no_answer);
  }
  return NotFound("no process ", pid_or_name, " has a control channel in ", directory,
                  "; there are: ", ListOf(*processes), no_answer);
}

}  // namespace hbmprof::tool
