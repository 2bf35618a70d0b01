//! One request, one answer: alone or in a crowd, cached or not, in chunks of any size.

use crate::server::{Server, http_client};
use reqwest::Client;
use serde_json::{Value, json};
use std::time::Duration;

const REQUESTS: usize = 60;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

fn words(random: &mut Random, count: usize) -> String {
    const WORDS: [&str; 12] =
        ["the", "weather", "in", "Paris", "is", "warm", "today,", "tell", "me", "why?", "A", "river"];
    (0..count).map(|_| WORDS[random.below(WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Greedy and seeded requests of many lengths. Some begin alike.
fn requests() -> Vec<Value> {
    let mut random = Random(1);
    let openings: Vec<String> = [20, 60, 200].map(|count| words(&mut random, count)).into();
    (0..REQUESTS)
        .map(|index| {
            let own = 1 + random.below(if index % 12 == 0 { 700 } else { 25 });
            let own = words(&mut random, own);
            let prompt = if index % 2 == 0 { own } else { format!("{} {own}", openings[index / 2 % 3]) };
            let temperature = if index % 3 == 0 { 0.9 } else { 0.0 };
            let max_tokens = 40 + random.below(120);
            json!({
                "prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, "seed": index, "logprobs": 1,
                "ignore_eos": index % 4 != 1,
            })
        })
        .collect()
}

/// What must be the same: text, tokens, their log-probabilities, and why it ended.
async fn answer(client: &Client, url: &str, request: &Value) -> Value {
    let answer = client.post(format!("{url}/v1/completions")).json(request).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut answer: Value = answer.json().await.unwrap();
    answer["choices"][0].take()
}

/// Asks and goes away: before anything came, or after the first piece.
async fn leave(client: &Client, url: &str, request: &Value, at_once: bool) {
    let mut request = request.clone();
    request["stream"] = json!(true);
    request["max_tokens"] = json!(200);
    let sending = client.post(format!("{url}/v1/completions")).json(&request).send();
    if at_once {
        let _ = tokio::time::timeout(Duration::from_millis(20), sending).await;
    } else if let Ok(mut answer) = sending.await {
        let _ = answer.chunk().await;
    }
}

/// The value of a metric without further labels.
async fn metric(client: &Client, url: &str, name: &str) -> f64 {
    let text = client.get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("atlas_{name}{{"))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

async fn crowd(url: String, requests: Vec<Value>, expected: Vec<Value>, seed: u64, what: &str) {
    let client = http_client();
    let mut random = Random(seed);
    let mut order: Vec<usize> = (0..requests.len()).collect();
    (1..order.len()).rev().for_each(|last| order.swap(last, random.below(last + 1)));
    let mut staying = tokio::task::JoinSet::new();
    let mut leaving = tokio::task::JoinSet::new();
    for index in order {
        let (client, url, request) = (client.clone(), url.clone(), requests[index].clone());
        if random.below(2) == 0 {
            let (client, url, at_once) = (client.clone(), url.clone(), random.below(2) == 0);
            let other = requests[random.below(requests.len())].clone();
            leaving.spawn(async move { leave(&client, &url, &other, at_once).await });
        }
        staying.spawn(async move { (index, answer(&client, &url, &request).await) });
    }
    while let Some(done) = staying.join_next().await {
        let (index, found) = done.unwrap();
        assert_eq!(found, expected[index], "{what}: request {index}");
    }
    leaving.join_all().await;
}

#[test]
fn every_answer_is_the_one_that_it_has_alone() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let requests = requests();
    let expected: Vec<Value> = {
        let server = Server::start(&["--enable-prefix-caching=false"]);
        let client = http_client();
        runtime.block_on(async {
            let mut answers = Vec::new();
            for request in &requests {
                answers.push(answer(&client, &server.url, request).await);
            }
            assert_eq!(metric(&client, &server.url, "prefix_cache_hits_total").await, 0.0);
            answers
        })
    };
    for (seed, chunk, cached) in [(1, "16", true), (2, "64", true), (3, "512", true), (4, "64", false)] {
        let what = format!("chunks of {chunk}, prefix cache {cached}");
        let caching = format!("--enable-prefix-caching={cached}");
        let server = Server::start(&["--max-prefill-tokens", chunk, "--max-batch-size", "12", &caching]);
        runtime.block_on(async {
            let crowd = crowd(server.url.clone(), requests.clone(), expected.clone(), seed, &what);
            crowd.await;
            let client = http_client();
            let metric = async |name: &str| metric(&client, &server.url, name).await;
            let batch = metric("engine_step_sequences_total").await / metric("engine_steps_total").await;
            let (hits, gone) = (metric("prefix_cache_hits_total").await, metric("requests_cancelled_total").await);
            eprintln!("{what}: a mean batch of {batch:.1}, {hits} cached tokens, {gone} disconnected");
            assert!(batch >= 6.0, "{what}: a mean batch of {batch:.1}");
            assert_eq!(hits > 0.0, cached, "{what}");
            assert!(gone > 0.0, "{what}");
        });
    }
}
