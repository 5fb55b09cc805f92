export const WORDS = {
 "parameters": {
  "noise_multiplier": {
   "name": "noise",
   "label": "noise multiplier",
   "help": "Noise multiplier: standard deviation / clipping norm.",
   "allowed": "a number of at least 0.01 and at most 1,000,000",
   "limits": {
    "ge": 0.01,
    "le": 1000000.0
   },
   "whole": false
  },
  "sample_rate": {
   "name": "rate",
   "label": "sampling rate",
   "help": "Sampling rate: probability of each record at each step.",
   "allowed": "a number of at least 1e-12 and at most 1",
   "limits": {
    "ge": 1e-12,
    "le": 1.0
   },
   "whole": false
  },
  "batch_size": {
   "name": "batch",
   "label": "batch size",
   "help": "Batch size: expected number of records in a batch. With the number of records it makes the sampling rate.",
   "allowed": "a whole number of at least 1 and at most 1,000,000,000",
   "limits": {
    "ge": 1,
    "le": 1000000000
   },
   "whole": true
  },
  "dataset_size": {
   "name": "records",
   "label": "training records",
   "help": "Number of training records.",
   "allowed": "a whole number of at least 1 and at most 1,000,000,000,000",
   "limits": {
    "ge": 1,
    "le": 1000000000000
   },
   "whole": true
  },
  "steps": {
   "name": "steps",
   "label": "steps",
   "help": "Number of updates.",
   "allowed": "a whole number of at least 1 and at most 1,000,000,000",
   "limits": {
    "ge": 1,
    "le": 1000000000
   },
   "whole": true
  },
  "epochs": {
   "name": "epochs",
   "label": "epochs",
   "help": "Epochs: passes over the training records, instead of steps (with the batch size and the number of records).",
   "allowed": "a number greater than 0 and at most 1,000,000",
   "limits": {
    "gt": 0.0,
    "le": 1000000.0
   },
   "whole": false
  },
  "max_batch_size": {
   "name": "max-batch",
   "label": "largest batch",
   "help": "With Poisson sampling: of a larger batch, so many records are kept at random (with the number of records).",
   "allowed": "a whole number of at least 1 and at most 1,000,000,000",
   "limits": {
    "ge": 1,
    "le": 1000000000
   },
   "whole": true
  },
  "distance": {
   "name": "distance",
   "label": "largest distance per step, in clipping norms",
   "help": "With threat attribute: the largest distance between the two gradients at a step, in clipping norms, 0 to 2.",
   "allowed": "a number of at least 0 and at most 2",
   "limits": {
    "ge": 0.0,
    "le": 2.0
   },
   "whole": false
  },
  "records_per_person": {
   "name": "records-per-person",
   "label": "records of a person",
   "help": "With threat membership or membership-add-remove: the number of records of a person, all of which are replaced, or left out.",
   "allowed": "a whole number of at least 1 and at most 1,000,000",
   "limits": {
    "ge": 1,
    "le": 1000000
   },
   "whole": true
  },
  "prior": {
   "name": "prior",
   "label": "probability of “yes” before the attack",
   "help": "Probability, before the attack, that 'yes' is the right guess.",
   "allowed": "a number of at least 0 and at most 1",
   "limits": {
    "ge": 0.0,
    "le": 1.0
   },
   "whole": false
  },
  "fpr": {
   "name": "fpr",
   "label": "false-positive rate",
   "help": "False-positive rate at which the TPR is reported (may be repeated).",
   "allowed": "a number of at least 0 and at most 1",
   "limits": {
    "ge": 0.0,
    "le": 1.0
   },
   "whole": false
  }
 },
 "selectors": {
  "sampling": "How batches are drawn: poisson (each record with the same probability, at each step), fixed-size (so many records, without replacement, anew at each step), balls-in-bins (each record in one random batch of an epoch), shuffled (a permutation of the records at each epoch, cut into batches).",
  "threat": "The attack, by what the attacker asks: membership (which of two records was used?), membership-add-remove (was this record used, or none?), attribute (which value did the attribute have?).",
  "sees": "What the attacker sees: updates (every update) or final-model (only the final model (a heuristic)). The figure for the final model is a heuristic, shown beside the bound.",
  "method": "How the risk is computed: exact, certified, affinity or paper.",
  "target": "What must hold, such as \"bayes_security>=0.98\", \"success<=0.51\", \"tpr<=0.05@fpr=0.01\" or \"epsilon<=1@delta=1e-5\"."
 },
 "threats": [
  {
   "name": "membership",
   "question": "which of two records was used?",
   "takes": [
    "records_per_person"
   ],
   "method": "exact",
   "attacker": "An attacker who guesses membership",
   "assumptions": [
    "a worst-case record: the attacker knows two records and guesses which of them was used",
    "an attacker who knows all other records and sees every update",
    "Poisson sampling: each step samples every record independently with the same probability",
    "ideal Gaussian noise on the sum of clipped gradients"
   ],
   "python": "bs.Membership()"
  },
  {
   "name": "membership-add-remove",
   "question": "was this record used, or none?",
   "takes": [
    "records_per_person"
   ],
   "method": "exact",
   "attacker": "An attacker who guesses membership",
   "assumptions": [
    "a worst-case record: the attacker guesses whether the record was used, or nothing in its place",
    "an attacker who knows all other records and sees every update",
    "Poisson sampling: each step samples every record independently with the same probability",
    "ideal Gaussian noise on the sum of clipped gradients"
   ],
   "python": "bs.Membership(\"add-remove\")"
  },
  {
   "name": "attribute",
   "question": "which value did the attribute have?",
   "takes": [
    "distance"
   ],
   "method": "certified",
   "attacker": "An attacker who guesses between two values of the attribute",
   "assumptions": [
    "a worst-case record: the attacker knows the rest of the record, and the clipped gradients of the attribute's values are never farther apart than {distance} clipping norms at any step",
    "an attacker who knows all other records and sees every update",
    "Poisson sampling: each step samples every record independently with the same probability",
    "ideal Gaussian noise on the sum of clipped gradients"
   ],
   "python": "bs.AttributeInference(distances={distance!r})"
  }
 ],
 "methods": [
  {
   "name": "exact",
   "summary": "an integral, with its estimated numerical error"
  },
  {
   "name": "certified",
   "summary": "proved from both sides"
  },
  {
   "name": "affinity",
   "summary": "a closed form, proved but wide"
  },
  {
   "name": "paper",
   "summary": "the paper's closed form, an approximation"
  }
 ],
 "samplings": [
  {
   "name": "poisson",
   "summary": "each record with the same probability, at each step",
   "takes": [
    "max_batch_size"
   ],
   "slow": false
  },
  {
   "name": "fixed-size",
   "summary": "so many records, without replacement, anew at each step",
   "takes": [],
   "slow": true
  },
  {
   "name": "balls-in-bins",
   "summary": "each record in one random batch of an epoch",
   "takes": [],
   "slow": false
  },
  {
   "name": "shuffled",
   "summary": "a permutation of the records at each epoch, cut into batches",
   "takes": [],
   "slow": false
  }
 ],
 "sees": [
  {
   "name": "updates",
   "summary": "every update"
  },
  {
   "name": "final-model",
   "summary": "only the final model (a heuristic)"
  }
 ],
 "metrics": {
  "bayes_security": {
   "title": "Bayes security β*",
   "short": "β*",
   "meaning": "1 minus the advantage of the best attacker. At 1 they may as well toss a coin, at 0 they always know.",
   "sign": ">=",
   "end": "lower",
   "share": false,
   "limited": true,
   "at": null,
   "given": null,
   "limit": 0.98
  },
  "advantage": {
   "title": "advantage",
   "short": "advantage",
   "meaning": "",
   "sign": "<=",
   "end": "upper",
   "share": false,
   "limited": true,
   "at": null,
   "given": null,
   "limit": 0.05
  },
  "success": {
   "title": "right guesses, prior {}",
   "short": "right guesses",
   "meaning": "",
   "sign": "<=",
   "end": "upper",
   "share": true,
   "limited": true,
   "at": "prior",
   "given": 0.5,
   "limit": 0.51
  },
  "tpr": {
   "title": "true positives at FPR {}",
   "short": "TPR at FPR {}",
   "meaning": "",
   "sign": "<=",
   "end": "upper",
   "share": false,
   "limited": true,
   "at": "fpr",
   "given": 0.01,
   "limit": 0.05
  },
  "epsilon": {
   "title": "ε at δ {}",
   "short": "ε at δ {}",
   "meaning": "",
   "sign": "<=",
   "end": "upper",
   "share": false,
   "limited": false,
   "at": "delta",
   "given": 1e-05,
   "limit": 1.0
  },
  "gdp_mu": {
   "title": "Gaussian μ, fitted down to FPR 1e-5",
   "short": "μ down to FPR 1e-5",
   "meaning": "",
   "sign": "<=",
   "end": "upper",
   "share": false,
   "limited": false,
   "at": null,
   "given": null,
   "limit": 0.3
  }
 },
 "sentence": "{attacker} is right {about} {share} of the time, against {idle} % without the model."
};
