//! A page cache that forgets to free two of its pages, in Rust.
//!
//!   rustc cache.rs -L native=/usr/local/lib -l hbmprof && ./cache cache.pb.gz

use std::alloc::{alloc, dealloc, Layout};
use std::ffi::{c_char, c_int, c_void, CStr, CString};

const PAGE_BYTES: usize = 4096;

/// hbmprof_stats of hbmprof/c_api.h, up to the fields that this program reads. The library writes no others, because
/// struct_size says where the struct ends.
#[repr(C)]
struct Stats {
    struct_size: usize,
    bytes_in_use: i64,
    peak_bytes_in_use: i64,
}

#[repr(C)]
struct Attributes {
    struct_size: usize,
    device: c_int,
    kind: c_int,
    allocator: c_int,
}

extern "C" {
    fn hbmprof_device(name: *const c_char) -> c_int;
    fn hbmprof_allocator(name: *const c_char) -> c_int;
    fn hbmprof_record_alloc_with(ptr: *const c_void, bytes: usize, attributes: *const Attributes) -> c_int;
    fn hbmprof_record_free(ptr: *const c_void) -> c_int;
    fn hbmprof_tag_push(key: *const c_char, value: *const c_char);
    fn hbmprof_tag_pop();
    fn hbmprof_get_stats(device: c_int, stats: *mut Stats) -> c_int;
    fn hbmprof_save_device_memory_profile(path: *const c_char) -> c_int;
    fn hbmprof_last_error() -> *const c_char;
}

/// A label for what this thread allocates, until it is dropped. (The raw pointer keeps it on its thread.)
struct ScopedTag(std::marker::PhantomData<*const ()>);

impl ScopedTag {
    fn new(key: &CStr, value: &CStr) -> ScopedTag {
        unsafe { hbmprof_tag_push(key.as_ptr(), value.as_ptr()) };
        ScopedTag(std::marker::PhantomData)
    }
}

impl Drop for ScopedTag {
    fn drop(&mut self) {
        unsafe { hbmprof_tag_pop() };
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("a zero byte in a name")
}

/// The result of a call that returns a status.
fn check(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(hbmprof_last_error()) }.to_string_lossy().into_owned())
}

struct Cache {
    attributes: Attributes,
    pages: Vec<*mut u8>,
}

impl Cache {
    #[inline(never)]
    fn add_page(&mut self) {
        let page = unsafe { alloc(Layout::array::<u8>(PAGE_BYTES).unwrap()) };
        unsafe { hbmprof_record_alloc_with(page as *const c_void, PAGE_BYTES, &self.attributes) };
        self.pages.push(page);
    }

    fn remove_page(&mut self) {
        if let Some(page) = self.pages.pop() {
            unsafe {
                hbmprof_record_free(page as *const c_void);
                dealloc(page, Layout::array::<u8>(PAGE_BYTES).unwrap());
            }
        }
    }
}

fn run(path: &str) -> Result<(), String> {
    let device = unsafe { hbmprof_device(text("npu:0").as_ptr()) };
    let allocator = unsafe { hbmprof_allocator(text("cache").as_ptr()) };
    let attributes = Attributes { struct_size: std::mem::size_of::<Attributes>(), device, kind: 0, allocator };
    let mut cache = Cache { attributes, pages: Vec::new() };
    {
        let _phase = ScopedTag::new(&text("phase"), &text("decode"));
        for _ in 0..5 {
            cache.add_page();
        }
    }
    for _ in 0..3 {
        cache.remove_page();
    }
    let mut stats = Stats { struct_size: std::mem::size_of::<Stats>(), bytes_in_use: 0, peak_bytes_in_use: 0 };
    check(unsafe { hbmprof_get_stats(device, &mut stats) })?;
    check(unsafe { hbmprof_save_device_memory_profile(text(path).as_ptr()) })?;
    println!("{} bytes in use, peak {}", stats.bytes_in_use, stats.peak_bytes_in_use);
    Ok(())
}

fn main() {
    let path = std::env::args().nth(1).expect("usage: cache PROFILE");
    if let Err(error) = run(&path) {
        eprintln!("cache: {error}");
        std::process::exit(1);
    }
}
