//! What the executor promises, on a real kernel.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::unwrap_used)]

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::channel::{mpsc, oneshot};
use futures::{SinkExt, StreamExt};
use garboard_executor::{AlignedBuffer, File, Options, Socket, SyncForm, blocking, run, sleep, spawn, yield_now};
use hyper::rt::{Read, ReadBuf, Write};

fn on_executor<F>(main: impl FnOnce() -> F) -> F::Output
where
    F: Future + 'static,
    F::Output: 'static,
{
    run(Options::default(), main).expect("this machine has io_uring")
}

async fn read_some<S: Read + Unpin>(socket: &mut S) -> Vec<u8> {
    let mut memory = [0; 4096];
    let mut buffer = ReadBuf::new(&mut memory);
    std::future::poll_fn(|cx| pin!(&mut *socket).poll_read(cx, buffer.unfilled())).await.unwrap();
    buffer.filled().to_vec()
}

async fn write_all<S: Write + Unpin>(socket: &mut S, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = std::future::poll_fn(|cx| pin!(&mut *socket).poll_write(cx, bytes)).await.unwrap();
        bytes = &bytes[count..];
    }
}

#[test]
fn tasks_run_in_turns_and_the_main_futures_end_is_the_executors() {
    let order = Rc::new(RefCell::new(Vec::new()));
    let seen = order.clone();
    let outcome = on_executor(move || async move {
        for task in 0..3 {
            let order = order.clone();
            spawn(async move {
                for step in 0..3 {
                    order.borrow_mut().push((step, task));
                    yield_now().await;
                }
            });
        }
        for _ in 0..10 {
            yield_now().await;
        }
        7
    });
    assert_eq!(outcome, 7);
    let mut sorted = seen.borrow().clone();
    sorted.sort_unstable();
    assert_eq!(*seen.borrow(), sorted, "each task ran once before any ran again");
    assert_eq!(sorted.len(), 9);
}

#[test]
fn timers_ring_in_the_order_in_which_they_are_due_and_none_early() {
    on_executor(|| async {
        let rung = Rc::new(RefCell::new(Vec::new()));
        let started = Instant::now();
        for milliseconds in [30, 10, 20] {
            let rung = rung.clone();
            spawn(async move {
                sleep(Duration::from_millis(milliseconds)).await;
                assert!(started.elapsed() >= Duration::from_millis(milliseconds));
                rung.borrow_mut().push(milliseconds);
            });
        }
        // One that is taken back wakes nobody.
        drop(sleep(Duration::from_millis(15)));
        sleep(Duration::from_millis(60)).await;
        assert_eq!(*rung.borrow(), [10, 20, 30]);
    });
}

#[test]
fn work_that_blocks_runs_elsewhere_while_tasks_go_on() {
    on_executor(|| async {
        let (turned, wait_for_turns) = std::sync::mpsc::channel();
        spawn(async move {
            for _ in 0..10 {
                sleep(Duration::from_millis(1)).await;
            }
            turned.send(()).unwrap();
        });
        let here = std::thread::current().id();
        // It ends only once the task beside it has gone on.
        let there = blocking(move || {
            wait_for_turns.recv().unwrap();
            std::thread::current().id()
        })
        .await;
        assert_ne!(here, there);
    });
}

#[test]
fn messages_between_executors_wake_the_one_that_sleeps() {
    const MESSAGES: u32 = 20_000;
    let (mut to_other, mut from_first) = mpsc::channel::<u32>(8);
    let (mut to_first, mut from_other) = mpsc::channel::<u32>(8);
    let other = std::thread::spawn(move || {
        on_executor(move || async move {
            while let Some(number) = from_first.next().await {
                to_first.send(number + 1).await.unwrap();
            }
        });
    });
    on_executor(move || async move {
        for number in 0..MESSAGES {
            to_other.send(number).await.unwrap();
            assert_eq!(from_other.next().await, Some(number + 1));
        }
        drop(to_other);
    });
    other.join().unwrap();
}

#[test]
fn a_socket_that_is_closed_says_so_and_lets_the_other_side_go() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut answer = Vec::new();
        for size in [1, 5_000, 1 << 20] {
            let sent = vec![7; size];
            let mut echoed = vec![0; size];
            let mut writer = stream.try_clone().unwrap();
            let writing = std::thread::spawn(move || writer.write_all(&sent).unwrap());
            stream.read_exact(&mut echoed).unwrap();
            writing.join().unwrap();
            assert!(echoed.iter().all(|byte| *byte == 7));
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.read_to_end(&mut answer).unwrap();
        answer
    });
    on_executor(move || async move {
        let listener = Socket::new(listener);
        let (stream, _) = listener.reading(TcpListener::accept).await.unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(stream);
        loop {
            let bytes = read_some(&mut socket).await;
            if bytes.is_empty() {
                break;
            }
            write_all(&mut socket, &bytes).await;
        }
        write_all(&mut socket, b"bye").await;
        drop(socket);
        // The client sees the end only once the kernel has let go of the socket.
        let answer = blocking(move || client.join().unwrap()).await;
        assert_eq!(answer, b"bye");
    });
}

#[test]
fn many_sockets_wait_at_once() {
    const SOCKETS: usize = 300;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let clients = std::thread::spawn(move || {
        let streams: Vec<_> = (0..SOCKETS).map(|_| TcpStream::connect(address).unwrap()).collect();
        for (number, mut stream) in streams.iter().enumerate().rev() {
            stream.write_all(&number.to_le_bytes()).unwrap();
        }
        for (number, mut stream) in streams.iter().enumerate() {
            let mut echoed = [0; 8];
            stream.read_exact(&mut echoed).unwrap();
            assert_eq!(usize::from_le_bytes(echoed), number);
        }
    });
    on_executor(move || async move {
        let listener = Socket::new(listener);
        let (done, mut finished) = mpsc::channel::<()>(SOCKETS);
        for _ in 0..SOCKETS {
            let (stream, _) = listener.reading(TcpListener::accept).await.unwrap();
            stream.set_nonblocking(true).unwrap();
            let mut done = done.clone();
            spawn(async move {
                let mut socket = Socket::new(stream);
                let bytes = read_some(&mut socket).await;
                write_all(&mut socket, &bytes).await;
                done.send(()).await.unwrap();
            });
        }
        for _ in 0..SOCKETS {
            finished.next().await.unwrap();
        }
        blocking(move || clients.join().unwrap()).await;
    });
}

fn file_for_writes(name: &str) -> (std::path::PathBuf, std::fs::File) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("executor");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    (path, file)
}

#[test]
fn a_write_of_either_form_is_in_the_file_when_it_completes() {
    for form in [SyncForm::Dsync, SyncForm::ThenFdatasync] {
        let (path, file) = file_for_writes(&format!("{form:?}"));
        let check = file.try_clone().unwrap();
        on_executor(move || async move {
            let file = File::from(file);
            let writes: Vec<_> = (0..100_u8)
                .map(|number| {
                    let mut buffer = AlignedBuffer::zeroed(8192);
                    buffer.bytes_mut().fill(number);
                    file.write(buffer, u64::from(number) * 8192, form)
                })
                .collect();
            for (number, write) in writes.into_iter().enumerate() {
                let (outcome, buffer) = write.await;
                assert_eq!(outcome.unwrap(), 8192);
                assert_eq!(buffer.len(), 8192);
                let mut found = [0; 8192];
                check.read_exact_at(&mut found, number as u64 * 8192).unwrap();
                assert!(found.iter().all(|byte| usize::from(*byte) == number));
            }
        });
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_write_that_fails_is_an_error_in_either_form() {
    for form in [SyncForm::Dsync, SyncForm::ThenFdatasync] {
        let (path, _) = file_for_writes(&format!("failing-{form:?}"));
        let read_only = std::fs::File::open(&path).unwrap();
        on_executor(move || async move {
            let file = File::from(read_only);
            let (outcome, _) = file.write(AlignedBuffer::zeroed(4096), 0, form).await;
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(9), "the descriptor is not open for writing");
        });
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_write_that_nobody_waits_for_goes_on() {
    let (path, file) = file_for_writes("abandoned");
    let check = file.try_clone().unwrap();
    on_executor(move || async move {
        let file = File::from(file);
        let mut buffer = AlignedBuffer::zeroed(4096);
        buffer.bytes_mut().fill(9);
        drop(file.write(buffer, 4096, SyncForm::ThenFdatasync));
        drop(file);
        let mut found = [0; 4096];
        while found[0] != 9 {
            sleep(Duration::from_millis(1)).await;
            check.read_exact_at(&mut found, 4096).unwrap();
        }
    });
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_wake_from_another_thread_is_never_lost() {
    on_executor(|| async {
        for _ in 0..2_000 {
            let (send, receive) = oneshot::channel();
            let sender = blocking(move || send.send(1).unwrap());
            assert_eq!(receive.await, Ok(1));
            sender.await;
        }
    });
}

#[test]
fn what_completes_is_noticed_while_a_task_is_always_ready() {
    let (path, file) = file_for_writes("beside-a-spinning-task");
    let last = run(Options { processor: None, short_turns: true }, move || async move {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let address = receiver.local_addr().unwrap();
        let over = Rc::new(RefCell::new(false));
        let spinning = over.clone();
        spawn(async move {
            while !*spinning.borrow() {
                yield_now().await;
            }
        });
        std::thread::spawn(move || {
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            for number in 0..200_u8 {
                sender.send_to(&[number], address).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let socket = Socket::new(receiver);
        let file = File::from(file);
        let mut last = 0;
        let mut datagram = [0; 1];
        while last != 199 {
            socket.reading(|socket| socket.recv(&mut datagram)).await.unwrap();
            last = datagram[0];
            if last.is_multiple_of(20) {
                let (written, _) = file.write(AlignedBuffer::zeroed(4096), 0, SyncForm::Dsync).await;
                written.unwrap();
                blocking(|| ()).await;
                sleep(Duration::from_micros(100)).await;
            }
        }
        *over.borrow_mut() = true;
        last
    })
    .expect("this machine has io_uring");
    std::fs::remove_file(path).unwrap();
    assert_eq!(last, 199);
}

#[test]
fn a_socket_for_datagrams_that_has_no_room_is_told_when_there_is_some() {
    let sent = run(Options::default(), || async {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let socket = Socket::for_datagrams(ours);
        // A queue of datagrams is short: it is full long before so many were sent.
        let (started, start) = std::sync::mpsc::channel();
        let receiver = std::thread::spawn(move || {
            start.recv().unwrap();
            let mut datagram = [0; 8];
            (0..500_u64).all(|number| {
                let count = theirs.recv(&mut datagram).unwrap();
                count == 8 && u64::from_le_bytes(datagram) == number
            })
        });
        for number in 0..500_u64 {
            let full = socket.get().send(&number.to_le_bytes()).is_err();
            if full {
                let _ = started.send(());
                socket.writing(|socket| socket.send(&number.to_le_bytes())).await.unwrap();
            }
        }
        receiver.join().unwrap()
    });
    assert!(sent.expect("this machine has io_uring"), "everything came, in order");
}

#[test]
fn who_waits_for_the_turn_to_end_goes_on_after_what_it_made_ready() {
    let order = run(Options::default(), || async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let (outer, inner) = (order.clone(), order.clone());
        spawn(async move {
            outer.borrow_mut().push("a task");
            spawn(async move { inner.borrow_mut().push("a task of the task") });
        });
        garboard_executor::after_turn().await;
        order.borrow_mut().push("after");
        order.take()
    });
    assert_eq!(order.expect("this machine has io_uring"), ["a task", "a task of the task", "after"]);
}
