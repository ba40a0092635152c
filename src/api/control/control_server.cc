#include "src/api/control/control_server.h"

#include <fcntl.h>
#include <poll.h>
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

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hbmprof/pprof.h"
#include "hbmprof/profiler.h"
#include "hbmprof/version.h"
#include "src/api/control/live.h"
#include "src/base/background_thread.h"
#include "src/base/descriptor.h"
#include "src/base/fork.h"
#include "src/base/lines.h"
#include "src/base/monotonic_clock.h"
#include "src/base/try_run.h"
#include "src/core/snapshot_builder.h"
#include "src/export/device_stats.h"
#include "src/protocol/attach.h"
#include "src/protocol/control.h"

namespace hbmprof::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxClients = 64;
constexpr int kMaxNames = 100;                   // sockets of processes with one process id (in several containers)
constexpr int kLowestDescriptor = 500;           // above the numbers that a program may expect for its own
constexpr std::chrono::seconds kRequestTime{5};  // for a client to send its request
constexpr std::chrono::seconds kAnswerTime{60};  // for a client to receive its answer
constexpr std::chrono::milliseconds kAcceptPause{500};  // after a connection could not be accepted
// While all kMaxClients connections are in use and another client waits, the server ends one of these: one that has not
// sent its request for kRequestGrace, one that has taken nothing of its answer for kAnswerGrace, or one that waits for
// a large answer that nobody makes yet.
constexpr std::chrono::milliseconds kRequestGrace{20};
constexpr std::chrono::milliseconds kAnswerGrace{1000};
// The interval at which the server checks whether a large answer is complete.
constexpr std::chrono::milliseconds kLargeInterval{2};
// The interval at which a client is sent a line feed while its large answer is made.
constexpr std::chrono::seconds kSignInterval{2};
// The interval at which the server checks whether the program has closed its socket. A poll in progress does not notice
// that, and the socket stays open in the kernel until the poll ends.
constexpr std::chrono::seconds kSocketInterval{2};

// A socket descriptor of this library, with the inode of its socket. The program may have closed the descriptor, and
// its number may now belong to another file. A forked child may call Close, also if the fork interrupted another
// function: then the socket may stay open.
class OwnSocket {
 public:
  // Moves `fd` to a high number. REQUIRES: there is no socket.
  void Open(int fd) {
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, kLowestDescriptor);
    if (high >= 0) close(fd);
    const int own = high >= 0 ? high : fd;
    struct stat info;
    inode_.store(fstat(own, &info) == 0 ? info.st_ino : 0);
    fd_.store(own);
  }
  // Returns the descriptor; -1 if there is no socket.
  int get() const { return fd_.load(); }
  bool IsStillOurs() const {
    struct stat info;
    return get() >= 0 && fstat(get(), &info) == 0 && S_ISSOCK(info.st_mode) && info.st_ino == inode_.load();
  }
  void Close() {
    if (IsStillOurs()) close(get());
    fd_.store(-1);
  }

 private:
  std::atomic<int> fd_{-1};
  std::atomic<ino_t> inode_{0};
};

// The answer to a request that takes long: a profile, or work with files. A thread of its own makes it (one profile at
// a time), so that the server answers small requests meanwhile. If large answers take all kMaxClients connections,
// other requests wait.
struct LargeAnswer {
  std::string request;
  std::string text;  // empty: the host has no memory for it
  std::atomic<bool> is_complete{false};
};

// A connection, if it has a socket.
struct Client {
  OwnSocket socket;
  bool waits = false;                  // for a large answer
  std::shared_ptr<LargeAnswer> large;  // if it is being made
  Clock::time_point deadline;
  Clock::time_point replaceable;  // when it may be ended for another client
  Clock::time_point next_sign;    // while it waits
  std::string request;
  std::string answer;
  size_t sent = 0;  // bytes of the answer
  bool is_answering = false;
};

// The state of the server. One per process; never destroyed.
struct Server {
  OwnSocket listener;
  sockaddr_un address = {};
  // Of the socket's file.
  dev_t device = 0;
  ino_t inode = 0;
  pid_t process = 0;
  // No connection is accepted before this time. It is later than now after accept4 has failed for a lack of descriptors
  // or memory: the connection then stays in the queue, so poll would return at once.
  Clock::time_point next_accept = Clock::now();
  Client clients[kMaxClients];
  std::shared_ptr<LargeAnswer> profile;  // the profile that is being made, or was made last
};
std::atomic<Server*> running{nullptr};
Clock::time_point start_time;  // set before the server's thread starts
std::atomic<const AttachRequests*> attach_requests{nullptr};

// --- Answers ---

int64_t SecondsSinceStart() {
  return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start_time).count();
}

// Returns `name` as a part of a line.
std::string InLine(std::string name) {
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name;
}

std::string Info() {
  std::string text = absl::StrCat("pid ", getpid(), "\nname ", InLine(NameInProc("self")), "\nversion ",
                                  HBMPROF_VERSION_STRING, "\nseconds ", SecondsSinceStart(), "\n");
  const Snapshot snapshot = SnapshotOf(Profiler::Default(), SnapshotParts::kDevices);
  absl::StrAppend(&text, "host ", InLine(snapshot.host), "\n");
  for (const auto& [name, value] : snapshot.environment) {
    absl::StrAppend(&text, "environment ", name, " ", InLine(value), "\n");
  }
  ForEachLine(ReadProcFile("/proc/self/cgroup"),
              [&text](const std::string& line) { absl::StrAppend(&text, "cgroup ", line, "\n"); });
  for (const Snapshot::Device& device : snapshot.devices) {
    for (int space = 0; space < kMemorySpaceCount; ++space) {
      const DeviceStats& stats = device.spaces[space];
      if (!IsUsed(stats)) continue;
      const std::string_view name = MemorySpaceName(static_cast<MemorySpace>(space));
      absl::StrAppend(&text, "memory ", absl::string_view(name.data(), name.size()), " ", stats.bytes_in_use, " ",
                      stats.peak_bytes_in_use, " ", stats.bytes_limit.value_or(-1), " ", InLine(device.name), "\n");
    }
  }
  for (const std::string& warning : snapshot.warnings) absl::StrAppend(&text, "warning ", InLine(warning), "\n");
  if (const AttachRequests* const requests = attach_requests.load(std::memory_order_acquire)) {
    text += requests->describe();
  }
  return text;
}

// Removes the first word of `text`, with the space after it, and returns the word.
std::string_view TakeWord(std::string_view* text) {
  const std::string_view word = text->substr(0, text->find(' '));
  text->remove_prefix(std::min(word.size() + 1, text->size()));
  return word;
}

absl::StatusOr<std::string> Profile(std::string_view arguments) {
  PprofOptions options;
  while (!arguments.empty()) {
    const std::string_view argument = TakeWord(&arguments);
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view value = argument.substr(std::min(equals + 1, argument.size()));
    const absl::Status status = ReadPprofLimit(argument.substr(0, equals), value, &options);
    if (!status.ok()) return status;
  }
  return SerializePprof(Profiler::Default().TakeSnapshot(), &ElfSymbolizer(), options);
}

absl::StatusOr<std::string> Metrics(std::string_view arguments) {
  constexpr std::string_view kTags = "tags=";
  if (arguments.empty()) return LiveMetrics({});
  if (arguments.substr(0, kTags.size()) == kTags) return LiveMetrics(arguments.substr(kTags.size()));
  return absl::InvalidArgumentError("the argument of metrics is tags=KEY,KEY,...");
}

// Returns an answer of 0 bytes, or the error.
absl::StatusOr<std::string> Empty(const absl::Status& status) {
  if (!status.ok()) return status;
  return std::string();
}

absl::StatusOr<std::string> Tracking(std::string_view argument) {
  if (argument != "on" && argument != "off") {
    return absl::InvalidArgumentError("the argument of tracking is on or off");
  }
  const AttachRequests* const requests = attach_requests.load(std::memory_order_acquire);
  if (argument == "on" && requests != nullptr && requests->is_detached()) {
    return absl::FailedPreconditionError("hbmprof is detached from the process: hbmprof attach records it again");
  }
  SetTracking(argument == "on");
  return std::string();
}

absl::Status Attach(bool attach) {
  const AttachRequests* const requests = attach_requests.load(std::memory_order_acquire);
  if (requests == nullptr) return absl::FailedPreconditionError(AttachText(kAttachPreloaded));
  const int code = attach ? requests->attach(nullptr) : requests->detach();
  return code == kAttached ? absl::OkStatus() : absl::FailedPreconditionError(AttachText(code));
}

absl::StatusOr<std::string> AnswerTo(std::string_view request) {
  std::string_view arguments = request;
  const std::string_view name = TakeWord(&arguments);
  if (name == "profile") return Profile(arguments);
  if (name == "metrics") return Metrics(arguments);
  if (name == "record") return Empty(ControlRecording(arguments));
  if (name == "tag") return Empty(SetProcessTag(arguments));
  if (name == "tracking") return Tracking(arguments);
  if (request == "attach" || request == "detach") return Empty(Attach(request == "attach"));
  if (request == "info") return Info();
  if (request == "stats") return LiveStats(SecondsSinceStart());
  if (request == "reset-peak") {
    ResetPeaks();
    return std::string();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hbmprof ", HBMPROF_VERSION_STRING, " in this process does not know the request"));
}

// Returns the answer with its header.
std::string WholeAnswerTo(std::string_view request) {
  absl::StatusOr<std::string> answer = absl::ResourceExhaustedError("the process has no host memory for the answer");
  static_cast<void>(TryRun([&] { answer = AnswerTo(request); }));
  const absl::string_view body = answer.ok() ? absl::string_view(*answer) : answer.status().message();
  return absl::StrCat(answer.ok() ? "ok " : "error ", body.size(), "\n", body);
}

bool IsProfile(std::string_view request) { return TakeWord(&request) == "profile"; }
bool IsLarge(std::string_view request) { return IsProfile(request) || TakeWord(&request) == "record"; }

void BeginAnswer(std::string&& text, Client* client) {
  client->answer = std::move(text);
  client->waits = false;
  client->is_answering = true;
  client->deadline = Clock::now() + kAnswerTime;
  client->replaceable = Clock::now() + kAnswerGrace;
}

// --- Clients ---

// Returns whether the process at the other end may send requests: its user is root or the user of this process. In a
// user namespace, users who have no number there, such as the root of the host, have the overflow id. One of them is
// allowed if the permissions of the socket's file let only its owner and privileged users connect.
bool IsAllowedClient(const Server& server, int fd) {
  constexpr uid_t kOverflow = 65534;
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  struct stat file;
  return peer.uid == geteuid() || peer.uid == 0 ||
         (peer.uid == kOverflow && lstat(server.address.sun_path, &file) == 0 && file.st_ino == server.inode &&
          (file.st_mode & 077) == 0);
}

// REQUIRES: `client` has no socket.
void Accept(Server* server, Client* client) {
  const int fd = AboveStandard(
      [server] { return accept4(server->listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  if (fd < 0) {
    const bool lacks_resources = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    if (lacks_resources) server->next_accept = Clock::now() + kAcceptPause;
    return;
  }
  if (!IsAllowedClient(*server, fd)) {
    close(fd);
    return;
  }
  client->deadline = Clock::now() + kRequestTime;
  client->replaceable = Clock::now() + kRequestGrace;
  client->socket.Open(fd);
}

// Reads the bytes of the request that have arrived; answers if the request is complete. Returns false if the connection
// is to be closed.
bool ReadRequest(Client* client) {
  char bytes[512];
  const ssize_t count = RetryOnSignal([&] { return recv(client->socket.get(), bytes, sizeof(bytes), 0); });
  if (count < 0) return errno == EAGAIN;
  if (count == 0) return false;
  client->request.append(bytes, static_cast<size_t>(count));
  if (client->request.size() > kMaxControlRequestBytes) return false;
  const size_t end = client->request.find('\n');
  if (end == std::string::npos) return true;
  client->request.resize(end);
  if (IsLarge(client->request)) {
    client->waits = true;
    client->deadline = Clock::now() + kAnswerTime;
    client->replaceable = Clock::now();
    client->next_sign = Clock::now() + kSignInterval;
  } else {
    BeginAnswer(WholeAnswerTo(client->request), client);
  }
  return true;
}

// Sends as much of the answer as the socket accepts now. Returns false if the connection is to be closed.
bool SendAnswer(Client* client) {
  const ssize_t count = RetryOnSignal([&] {
    const std::string_view rest = std::string_view(client->answer).substr(client->sent);
    return send(client->socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
  });
  if (count < 0) return errno == EAGAIN;
  client->sent += static_cast<size_t>(count);
  client->replaceable = Clock::now() + kAnswerGrace;
  return client->sent < client->answer.size();
}

// Ends the connection, also if a forked child has a copy of its descriptor. Frees the memory of the answer.
void End(Client* client) {
  if (client->socket.IsStillOurs()) shutdown(client->socket.get(), SHUT_RDWR);
  client->socket.Close();
  client->waits = false;
  client->large = nullptr;
  client->request = std::string();
  client->answer = std::string();
  client->sent = 0;
  client->is_answering = false;
}

// Reads from the client or writes to it. Closes the connection if it has ended.
void Serve(Client* client, int events) {
  bool goes_on = client->socket.IsStillOurs() && Clock::now() < client->deadline;
  if (goes_on && events != 0 && client->waits) goes_on = (events & (POLLHUP | POLLERR)) == 0;
  if (goes_on && events != 0 && !client->waits) {
    goes_on = client->is_answering ? SendAnswer(client) : ReadRequest(client);
  }
  if (!goes_on) End(client);
}

// --- Large answers ---

void* MakeLarge(void* argument) {
  const std::unique_ptr<const std::shared_ptr<LargeAnswer>> answer(
      static_cast<std::shared_ptr<LargeAnswer>*>(argument));
  LargeAnswer& large = **answer;
  static_cast<void>(TryRun([&] { large.text = WholeAnswerTo(large.request); }));
  large.is_complete.store(true, std::memory_order_release);
  return nullptr;
}

// Makes the answer of `client` in a thread.
void StartLarge(Client* client) {
  client->large = std::make_shared<LargeAnswer>();
  client->large->request = client->request;
  client->replaceable = client->deadline;
  auto* const argument = new std::shared_ptr<LargeAnswer>(client->large);
  if (!StartBackgroundThread(&MakeLarge, argument)) MakeLarge(argument);
}

// Sends the answers that are complete, and makes others.
void ServeLarge(Server* server) {
  const bool is_busy = server->profile != nullptr && !server->profile->is_complete.load(std::memory_order_acquire);
  Client* next = nullptr;
  for (Client& client : server->clients) {
    if (!client.waits) continue;
    if (client.next_sign <= Clock::now()) {
      send(client.socket.get(), "\n", 1, MSG_NOSIGNAL);
      client.next_sign += kSignInterval;
    }
    if (client.large != nullptr && client.large->is_complete.load(std::memory_order_acquire)) {
      BeginAnswer(std::move(client.large->text), &client);
      client.large = nullptr;
      if (client.answer.empty()) End(&client);
    } else if (client.large == nullptr) {
      // Only a profile waits for its turn: a disk that does not answer must not delay it.
      if (!IsProfile(client.request)) {
        StartLarge(&client);
      } else if (next == nullptr || client.deadline < next->deadline) {
        next = &client;
      }
    }
  }
  if (next == nullptr || is_busy) return;
  StartLarge(next);
  server->profile = next->large;
}

// --- The loop ---

// Returns the place for the next connection: one without a socket, else the one that may be replaced first.
Client* NextPlace(Server* server) {
  Client* first = &server->clients[0];
  for (Client& client : server->clients) {
    if (client.socket.get() < 0) return &client;
    if (client.replaceable < first->replaceable) first = &client;
  }
  return first;
}

// Returns the time from which on a connection can be accepted.
Clock::time_point AcceptTime(Server* server) {
  const Client& place = *NextPlace(server);
  return place.socket.get() < 0 ? server->next_accept : std::max(server->next_accept, place.replaceable);
}

int MillisToWait(const Server& server, Clock::time_point accept_time) {
  auto next = Clock::now() + kSocketInterval;
  if (accept_time > Clock::now()) next = std::min(next, accept_time);
  for (const Client& client : server.clients) {
    if (client.socket.get() >= 0) next = std::min(next, client.deadline);
    if (client.waits) next = std::min(next, Clock::now() + kLargeInterval);
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count() + 1;
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// Waits for events, a deadline or the check interval, and handles all clients once. Returns false if the server must
// end: the program has closed the listening socket, or poll has failed.
bool ServeOnce(Server* server) {
  // Has no entries without a descriptor: poll refuses more entries than the process may have descriptors.
  pollfd polled[kMaxClients + 1];
  Client* clients[kMaxClients];
  size_t count = 0;
  for (Client& client : server->clients) {
    if (client.socket.get() < 0) continue;
    const short events = client.waits ? 0 : client.is_answering ? POLLOUT : POLLIN;
    clients[count] = &client;
    polled[count++] = {client.socket.get(), events, 0};
  }
  const Clock::time_point accept_time = AcceptTime(server);
  pollfd& listener = polled[count];
  listener = {Clock::now() >= accept_time ? server->listener.get() : -1, POLLIN, 0};  // poll ignores the descriptor -1
  if (poll(polled, count + 1, MillisToWait(*server, accept_time)) < 0 && errno != EINTR) {
    for (size_t i = 0; i < count; ++i) End(clients[i]);
    return count > 0;
  }
  if (!server->listener.IsStillOurs()) return false;
  for (size_t i = 0; i < count; ++i) Serve(clients[i], polled[i].revents);
  ServeLarge(server);
  if ((listener.revents & POLLIN) == 0 || AcceptTime(server) > Clock::now()) return true;
  Client* const place = NextPlace(server);
  End(place);
  Accept(server, place);
  return true;
}

// Removes the socket's file, unless another process has replaced it. Async-signal-safe.
void RemoveFile(const Server& server) {
  struct stat info;
  if (lstat(server.address.sun_path, &info) != 0) return;
  if (info.st_dev == server.device && info.st_ino == server.inode) unlink(server.address.sun_path);
}

void* ServeForEver(void* argument) {
  auto* const server = static_cast<Server*>(argument);
  bool goes_on = true;
  while (goes_on) {
    try {
      goes_on = ServeOnce(server);
    } catch (const std::exception&) {
      // The host has no memory: the clients get no answer.
      for (Client& client : server->clients) End(&client);
    }
  }
  RemoveFile(*server);
  return nullptr;
}

// --- Start and end ---

absl::Status NoChannel(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("no control channel: ", why));
}

absl::Status SystemError(absl::string_view what, absl::string_view path) {
  const int error = errno;
  return NoChannel(absl::StrCat(what, " ", path, ": ", std::strerror(error)));
}

absl::Status CheckDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("mkdir", directory);
  struct stat info;
  if (lstat(directory.c_str(), &info) != 0) return SystemError("stat", directory);
  if (IsSafeControlDirectory(info, geteuid())) return absl::OkStatus();
  return NoChannel(directory +
                   " must be a directory that belongs to the process's user or to root and that no other user may "
                   "write to");
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

// If no process listens at `address`, because the process that made the socket was killed, removes the socket's file.
// Returns whether there is no file at `address` now.
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

absl::Status CheckLength(const std::string& path) {
  constexpr size_t kMostBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMostBytes) return absl::OkStatus();
  return NoChannel(
      absl::StrCat("the path ", path, " has ", path.size(), " bytes; a socket path may have at most ", kMostBytes));
}

std::string PathOf(const std::string& directory, int number) {
  const std::string suffix = number == 0 ? "" : absl::StrCat(".", number);
  return absl::StrCat(directory, "/", kControlSocketPrefix, getpid(), suffix, kControlSocketSuffix);
}

// Adds the first name that is free to the socket at `temporary`.
absl::Status AddName(const std::string& temporary, const std::string& directory, sockaddr_un* address) {
  for (int i = 0; i < kMaxNames; ++i) {
    const std::string path = PathOf(directory, i);
    if (const absl::Status status = CheckLength(path); !status.ok()) return status;
    *address = AddressOf(path);
    if (link(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
    if (errno != EEXIST) return SystemError("link", path);
    if (RemoveIfDead(*address) && link(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  }
  return NoChannel("too many sockets in " + directory);
}

// A socket that is bound and does not listen yet looks like one of a killed process, which others remove. So it is made
// with a temporary name, which `hbmprof ps` ignores and which is shorter, and gets its name after it listens.
absl::Status Listen(const std::string& directory, Server* server) {
  if (const absl::Status status = CheckDirectory(directory); !status.ok()) return status;
  if (const absl::Status status = CheckLength(PathOf(directory, 0)); !status.ok()) return status;
  FileDescriptor fd(AboveStandard([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }));
  if (fd.get() < 0) return SystemError("socket", "");
  fchmod(fd.get(), 0600);  // the permissions that bind gives the file
  // Several containers can have a process with this id.
  const std::string temporary =
      absl::StrCat(directory, "/", kControlBoundPrefix, getpid(), ".", MonotonicNanos() % 1'000'000);
  const sockaddr_un address = AddressOf(temporary);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError("bind", temporary);
  }
  struct stat info;
  const bool listens = listen(fd.get(), SOMAXCONN) == 0 && lstat(temporary.c_str(), &info) == 0;
  const absl::Status status =
      listens ? AddName(temporary, directory, &server->address) : SystemError("listen", temporary);
  unlink(temporary.c_str());
  if (!status.ok()) return status;
  server->device = info.st_dev;
  server->inode = info.st_ino;
  server->listener.Open(fd.Release());
  server->process = getpid();
  return absl::OkStatus();
}

// The child has no server thread. It closes its copies of the sockets, so that no client waits for the child.
void CloseInChild(bool /*is_off*/) {
  Server* const server = running.exchange(nullptr);
  if (server == nullptr) return;
  server->listener.Close();
  for (Client& client : server->clients) client.socket.Close();
}

[[gnu::constructor]] void FollowForks() { HandleForks(&CloseInChild); }

std::atomic<bool> is_started{false};

absl::Status Start(const std::string& directory) {
  auto server = std::make_unique<Server>();
  if (const absl::Status status = Listen(directory, server.get()); !status.ok()) return status;
  running.store(server.get());
  start_time = Clock::now();
  std::atexit(&RemoveControlSocket);
  if (!StartBackgroundThread(&ServeForEver, server.get())) {
    RemoveFile(*server);
    server->listener.Close();
    running.store(nullptr);
    return NoChannel("no thread could be started");
  }
  server.release();
  return absl::OkStatus();
}

}  // namespace

void SetAttachRequests(const AttachRequests* requests) { attach_requests.store(requests, std::memory_order_release); }

void RemoveControlSocket() {
  const Server* const server = running.load();
  if (server != nullptr && server->process == getpid()) RemoveFile(*server);
}

absl::Status StartControlServer(const std::string& directory) try {
  if (is_started.exchange(true)) return absl::OkStatus();
  const absl::Status status = Start(directory);
  if (!status.ok()) is_started.store(false);
  return status;
} catch (const std::bad_alloc&) {
  is_started.store(false);
  throw;
}

}  // namespace hbmprof::internal
