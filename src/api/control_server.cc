#include "src/api/control_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hbmprof/hbmprof.h"
#include "hbmprof/version.h"
#include "src/base/control_protocol.h"
#include "src/base/descriptor.h"

namespace hbmprof::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxClients = 32;
constexpr int kMaxNames = 100;                   // sockets of processes with one process id (in several containers)
constexpr int kLowestDescriptor = 500;           // far from the numbers that a program may count on
constexpr std::chrono::seconds kRequestTime{5};  // for a client to send its request
constexpr std::chrono::seconds kAnswerTime{60};  // for a client to take its answer
// How often the server looks whether the program has closed its socket. A poll in progress does not notice that, and
// keeps the socket alive.
constexpr std::chrono::seconds kCheckInterval{2};
constexpr size_t kStackBytes = size_t{1} << 20;

// A descriptor of ours, by what it stands for: the program may have closed it and opened something else of its number.
class OwnSocket {
 public:
  OwnSocket() = default;
  // Moves `fd` to a high number.
  explicit OwnSocket(int fd) {
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, kLowestDescriptor);
    if (fd_ >= 0) {
      close(fd);
    } else {
      fd_ = fd;
    }
    struct stat info;
    if (fstat(fd_, &info) == 0) inode_ = info.st_ino;
  }
  int get() const { return fd_; }
  bool IsStillOurs() const {
    struct stat info;
    return fd_ >= 0 && fstat(fd_, &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == inode_;
  }
  void Close() {
    if (IsStillOurs()) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  ino_t inode_ = 0;
};

struct Client {
  OwnSocket socket;
  Clock::time_point deadline;
  std::string request;
  std::string answer;  // what is left to send
  bool is_answering = false;
};

// The state of the server. One per process; never destroyed.
struct Server {
  OwnSocket listener;
  sockaddr_un address = {};
  pid_t process = 0;
  Clock::time_point start = Clock::now();
  std::vector<Client> clients;
};
std::atomic<Server*> running{nullptr};

// --- Answers ---

std::string ProcessName() {
  std::string name = ReadProcFile("/proc/self/comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name;
}

std::string Info(const Server& server) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - server.start).count();
  std::string text = absl::StrCat("pid ", getpid(), "\nname ", ProcessName(), "\nversion ", HBMPROF_VERSION_STRING,
                                  "\nseconds ", seconds, "\n");
  for (const Snapshot::Device& device : Profiler::Default().TakeSnapshot().devices) {
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats& stats = device.spaces[space];
      if (stats.num_allocs == 0) continue;
      const std::string_view name = MemorySpaceName(static_cast<MemorySpace>(space));
      absl::StrAppend(&text, "memory ", absl::string_view(name.data(), name.size()), " ", stats.bytes_in_use, " ",
                      stats.peak_bytes_in_use, " ", stats.bytes_limit.value_or(-1), " ", device.name, "\n");
    }
  }
  return text;
}

void ResetPeaks() {
  Profiler& profiler = Profiler::Default();
  for (const Snapshot::Device& device : profiler.TakeSnapshot().devices)
    profiler.ResetPeak(profiler.Device(device.name));
}

absl::StatusOr<std::string> AnswerTo(const Server& server, std::string_view request) {
  if (request == "info") return Info(server);
  if (request == "profile") return device_memory_profile();
  if (request == "reset-peak") {
    ResetPeaks();
    return std::string();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hbmprof ", HBMPROF_VERSION_STRING, " in this process does not know the request"));
}

void Answer(const Server& server, Client* client) {
  const size_t end = client->request.find('\n');
  absl::StatusOr<std::string> answer = absl::ResourceExhaustedError("the process has no host memory for the answer");
  try {
    answer = AnswerTo(server, std::string_view(client->request).substr(0, end));
  } catch (const std::exception&) {
    // The message above.
  }
  const absl::string_view body = answer.ok() ? absl::string_view(*answer) : answer.status().message();
  client->answer = absl::StrCat(answer.ok() ? "ok " : "error ", body.size(), "\n", body);
  client->is_answering = true;
  client->deadline = Clock::now() + kAnswerTime;
}

// --- Clients ---

// Whether the process at the other end may ask: it is root's or of this process's user.
bool MayAsk(int fd) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

void Accept(Server* server) {
  const int fd = accept4(server->listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  if (!MayAsk(fd)) {
    close(fd);
    return;
  }
  Client& client = server->clients.emplace_back();
  client.socket = OwnSocket(fd);
  client.deadline = Clock::now() + kRequestTime;
}

// Reads what there is of the request; answers if it is complete. Returns false if the client is done with.
bool ReadRequest(const Server& server, Client* client) {
  char bytes[512];
  const ssize_t count = RetryOnSignal([&] { return recv(client->socket.get(), bytes, sizeof(bytes), 0); });
  if (count < 0) return errno == EAGAIN;
  if (count == 0) return false;
  client->request.append(bytes, static_cast<size_t>(count));
  if (client->request.find('\n') != std::string::npos) Answer(server, client);
  return client->request.size() <= kMaxControlRequestBytes;
}

// Sends what the client takes of the answer. Returns false if the client is done with.
bool SendAnswer(Client* client) {
  const ssize_t count = RetryOnSignal(
      [&] { return send(client->socket.get(), client->answer.data(), client->answer.size(), MSG_NOSIGNAL); });
  if (count < 0) return errno == EAGAIN;
  client->answer.erase(0, static_cast<size_t>(count));
  return !client->answer.empty();
}

// Returns false if the client is done with: then its connection is closed.
bool Serve(const Server& server, Client* client, int events) {
  bool goes_on = client->socket.IsStillOurs() && Clock::now() < client->deadline;
  if (goes_on && events != 0) goes_on = client->is_answering ? SendAnswer(client) : ReadRequest(server, client);
  if (!goes_on) client->socket.Close();
  return goes_on;
}

int MillisToWait(const std::vector<Client>& clients) {
  auto next = Clock::now() + kCheckInterval;
  for (const Client& client : clients) next = std::min(next, client.deadline);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count() + 1;
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// One round: waits for something to do, and does it. Returns false if the program has closed the listening socket.
bool ServeOnce(Server* server) {
  std::vector<pollfd> polled;
  for (const Client& client : server->clients) {
    const short events = client.is_answering ? POLLOUT : POLLIN;
    polled.push_back({client.socket.get(), events, 0});
  }
  if (server->clients.size() < kMaxClients) polled.push_back({server->listener.get(), POLLIN, 0});
  if (poll(polled.data(), polled.size(), MillisToWait(server->clients)) < 0 && errno != EINTR) return false;
  if (!server->listener.IsStillOurs()) return false;
  size_t kept = 0;
  const size_t count = server->clients.size();
  const bool may_accept = polled.size() > count && (polled[count].revents & POLLIN) != 0;
  for (size_t i = 0; i < count; ++i) {
    if (Serve(*server, &server->clients[i], polled[i].revents)) std::swap(server->clients[kept++], server->clients[i]);
  }
  server->clients.resize(kept);
  if (may_accept) Accept(server);
  return true;
}

void* ServeForEver(void* argument) {
  auto* const server = static_cast<Server*>(argument);
  bool goes_on = true;
  while (goes_on) {
    try {
      goes_on = ServeOnce(server);
    } catch (const std::exception&) {
      // The host has no memory: whoever waits gets no answer.
      for (Client& client : server->clients) client.socket.Close();
      server->clients.clear();
    }
  }
  return nullptr;
}

// --- Start and end ---

absl::Status SystemError(absl::string_view what, absl::string_view path) {
  const int error = errno;
  const std::string text = absl::StrCat("no control channel: ", what, " ", path, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EMFILE || error == ENFILE || error == ENOSPC || error == ENOMEM || error == EAGAIN) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::InternalError(text);
}

// Of a directory that others may write to, they could replace the socket.
absl::Status CheckDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("mkdir", directory);
  struct stat info;
  if (lstat(directory.c_str(), &info) != 0) return SystemError("stat", directory);
  const bool is_safe = S_ISDIR(info.st_mode) && (info.st_uid == geteuid() || info.st_uid == 0) &&
                       ((info.st_mode & 022) == 0 || (info.st_mode & S_ISVTX) != 0);
  if (is_safe) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("no control channel: ", directory,
                                                  " must be a directory that belongs to the process's user or to root "
                                                  "and that no other user may write to"));
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// Whether nobody listens at `address` any more: its process was killed. Then its file is removed.
bool RemoveIfDead(const sockaddr_un& address) {
  struct stat info;
  if (lstat(address.sun_path, &info) != 0) return errno == ENOENT;
  if (!S_ISSOCK(info.st_mode) || info.st_uid != geteuid()) return false;
  const FileDescriptor probe(
      AboveStandard([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
  const bool is_dead =
      connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno == ECONNREFUSED;
  return is_dead && unlink(address.sun_path) == 0;
}

// Binds to the first name that is free.
absl::Status Bind(int fd, const std::string& directory, sockaddr_un* bound) {
  for (int i = 0; i < kMaxNames; ++i) {
    const std::string number = i == 0 ? "" : absl::StrCat(".", i);
    const std::string path = absl::StrCat(directory, "/", kControlSocketPrefix, getpid(), number, kControlSocketSuffix);
    if (path.size() >= sizeof(bound->sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("no control channel: the path ", path, " has ", path.size(),
                                                     " bytes; a socket's may have ", sizeof(bound->sun_path) - 1));
    }
    *bound = AddressOf(path);
    const auto* address = reinterpret_cast<const sockaddr*>(bound);
    if (bind(fd, address, sizeof(*bound)) == 0) return absl::OkStatus();
    if (errno != EADDRINUSE) return SystemError("bind", path);
    if (RemoveIfDead(*bound) && bind(fd, address, sizeof(*bound)) == 0) return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("no control channel: too many sockets in ", directory));
}

absl::Status Listen(const std::string& directory, Server* server) {
  if (const absl::Status status = CheckDirectory(directory); !status.ok()) return status;
  FileDescriptor fd(AboveStandard([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
  if (fd.get() < 0) return SystemError("socket", "");
  fchmod(fd.get(), 0600);  // what bind gives the file
  if (const absl::Status status = Bind(fd.get(), directory, &server->address); !status.ok()) return status;
  if (listen(fd.get(), SOMAXCONN) != 0) {
    const absl::Status status = SystemError("listen", server->address.sun_path);
    unlink(server->address.sun_path);
    return status;
  }
  server->listener = OwnSocket(fd.Release());
  server->process = getpid();
  return absl::OkStatus();
}

bool StartThread(Server* server) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = pthread_create(&thread, &attributes, &ServeForEver, server) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return is_started;
}

// The child has no thread that serves; nobody must wait for its copies of the sockets. The list of clients may be half
// changed: it is not read.
void CloseInChild() {
  Server* const server = running.exchange(nullptr);
  if (server != nullptr) server->listener.Close();
}

}  // namespace

void RemoveControlSocket() {
  const Server* const server = running.load();
  if (server != nullptr && server->process == getpid()) unlink(server->address.sun_path);
}

absl::Status StartControlServer(const std::string& directory) {
  static std::atomic<bool> is_started{false};
  if (is_started.exchange(true)) return absl::OkStatus();
  auto server = std::make_unique<Server>();
  server->clients.reserve(kMaxClients);
  if (const absl::Status status = Listen(directory, server.get()); !status.ok()) return status;
  running.store(server.get());
  pthread_atfork(nullptr, nullptr, &CloseInChild);
  std::atexit(&RemoveControlSocket);
  if (!StartThread(server.get())) {
    unlink(server->address.sun_path);
    server->listener.Close();
    running.store(nullptr);
    return absl::ResourceExhaustedError("no control channel: no thread could be started");
  }
  server.release();
  return absl::OkStatus();
}

}  // namespace hbmprof::internal
